//! Pods that are replaced one by one while clients keep coming.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ferrule_dataplane::userspace::relay::Failure;

use crate::support::{LOCALHOST, Scene, backends, outcome};

/// An endpoint that can die.
struct Mortal {
    address: SocketAddr,
    dying: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Mortal {
    fn start() -> Self {
        let listener = TcpListener::bind((LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let dying = Arc::new(AtomicBool::new(false));
        let dies = Arc::clone(&dying);
        let thread = std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                if dies.load(Ordering::Acquire) {
                    return;
                }
                drop(stream.write_all(b"served"));
            }
        });
        Self {
            address,
            dying,
            thread,
        }
    }

    /// Nobody listens any more when this returns.
    fn die(self) {
        self.dying.store(true, Ordering::Release);
        drop(TcpStream::connect(self.address));
        self.thread.join().unwrap();
    }
}

/// Many clients at once; each is served.
fn all_are_served(scene: &Scene) -> u64 {
    const AT_ONCE: u64 = 8;
    const EACH: u64 = 25;
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                for _ in 0..EACH {
                    assert_eq!(outcome(scene.connect()), Ok(b"served".to_vec()));
                }
            });
        }
    });
    AT_ONCE * EACH
}

#[test]
fn pods_that_die_in_mid_rollout_cost_no_client_its_connection() {
    let mut pods: Vec<_> = (0..4).map(|_| Mortal::start()).collect();
    let addresses = |pods: &[Mortal]| pods.iter().map(|pod| pod.address).collect::<Vec<_>>();
    let scene = Scene::tcp(&addresses(&pods));
    let mut clients = all_are_served(&scene);
    for _ in 0..6 {
        // No slice says so yet.
        pods.remove(0).die();
        clients += all_are_served(&scene);
        // The next one is there, and slices follow.
        pods.push(Mortal::start());
        scene.set(backends(&addresses(&pods)));
        clients += all_are_served(&scene);
    }
    let stats = scene.stats();
    let accepted: u64 = stats.lanes.values().map(|lane| lane.accepted).sum();
    assert_eq!(accepted, clients);
    assert_eq!((stats.given_up, stats.no_endpoint), (0, 0));
    // They were met, and others asked instead.
    assert!(stats.failures[&Failure::Refused] >= 6, "{stats:?}");
    assert_eq!(stats.retries, stats.failures[&Failure::Refused]);
}
