//! What watchers notice reaches sync, however often they must be asked.

use std::collections::VecDeque;

use super::*;

/// Says what it was given, one by one, then nothing for ever.
struct Scripted {
    cadence: Cadence,
    answers: VecDeque<io::Result<bool>>,
    asked: std::sync::mpsc::Sender<()>,
}

impl Watcher for Scripted {
    fn cadence(&self) -> Cadence {
        self.cadence
    }

    fn changed(&mut self, timeout: Duration) -> io::Result<bool> {
        _ = self.asked.send(());
        match self.answers.pop_front() {
            Some(answer) => answer,
            None if self.cadence == Cadence::Notified => {
                thread::sleep(timeout.min(Duration::from_millis(5)));
                Ok(false)
            }
            None => Ok(false),
        }
    }
}

fn scripted(
    cadence: Cadence,
    answers: impl IntoIterator<Item = bool>,
) -> (Box<dyn Watcher>, std::sync::mpsc::Receiver<()>) {
    let (asked, questions) = std::sync::mpsc::channel();
    let answers = answers.into_iter().map(Ok).collect();
    let watcher = Scripted {
        cadence,
        answers,
        asked,
    };
    (Box::new(watcher), questions)
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn one_change_in_many_notifications_is_one_resync() {
    let (sender, mut inputs) = mpsc::channel(8);
    let guard = Guard::new(sender, Period::new(LONG));
    let (watcher, _questions) = scripted(Cadence::Notified, [true, true, true, false, true]);
    guard.start(Family::V6, vec![watcher]);
    for _ in 0..2 {
        let input = inputs.blocking_recv();
        assert!(matches!(input, Some(Input::Resync(Family::V6))));
    }
    thread::sleep(Duration::from_millis(50));
    assert!(inputs.try_recv().is_err(), "two changes, two resyncs");
}

#[test]
fn a_polled_watcher_is_asked_once_per_period_and_a_shorter_one_holds_at_once() {
    let (sender, mut inputs) = mpsc::channel(8);
    let period = Period::new(Duration::from_hours(1));
    let guard = Guard::new(sender, period.clone());
    let (watcher, questions) = scripted(Cadence::Polled, [true]);
    guard.start(Family::V4, vec![watcher]);
    let soon = Duration::from_millis(250);
    assert!(questions.recv_timeout(soon).is_err(), "an hour is long");
    period.set(Duration::from_millis(1));
    questions.recv_timeout(LONG).unwrap();
    assert!(matches!(
        inputs.blocking_recv(),
        Some(Input::Resync(Family::V4))
    ));
    questions.recv_timeout(LONG).unwrap();
}

#[test]
fn a_watcher_ends_with_sync() {
    let (sender, inputs) = mpsc::channel(8);
    let guard = Guard::new(sender, Period::new(Duration::from_millis(1)));
    let (watcher, questions) = scripted(Cadence::Polled, []);
    guard.start(Family::V4, vec![watcher]);
    questions.recv_timeout(LONG).unwrap();
    drop(inputs);
    while questions.recv_timeout(LONG).is_ok() {}
    // The sender went with the thread.
    assert_eq!(
        questions.recv_timeout(LONG),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
    );
}
