//! Requests and answers without a kernel.

use proptest::prelude::*;

use super::*;
use crate::Family;
use crate::recorder::{Answer, Recorder, Script};
use crate::wire::{NLM_F_MULTI, NLMSG_DONE, Writer, messages};

/// Families as the kernel lists them.
fn families(names: &[(&str, u16)]) -> Vec<u8> {
    let mut writer = Writer::new();
    for (name, number) in names {
        let start = writer.begin(CONTROL, NLM_F_MULTI, 0);
        writer.raw(&[1, 2, 0, 0]);
        writer.text(FAMILY_NAME, name);
        writer.attr(FAMILY_NUMBER, &number.to_ne_bytes());
        writer.u32_ne(3, 1);
        writer.end(start);
    }
    let start = writer.begin(NLMSG_DONE, NLM_F_MULTI, 0);
    writer.raw(&[0; 4]);
    writer.end(start);
    writer.bytes().to_vec()
}

#[test]
fn all_is_forgotten_by_the_number_that_the_name_has() {
    let script = Script::default();
    let listed = families(&[("nlctrl", 16), ("IPVS", 28), ("ethtool", 29)]);
    script.answer(Answer::Replay(vec![listed]));
    let ipvs = Ipvs::over(Recorder::new(script.clone())).unwrap();
    ipvs.unwrap().flush().unwrap();
    let requests = script.take_requests();
    assert_eq!(requests.len(), 2);
    // Length, number, flags (request, acknowledge), sequence, port; command and version.
    assert_eq!(requests[1][..8], [20, 0, 0, 0, 28, 0, 5, 0]);
    assert_eq!(requests[1][16..], [17, 1, 0, 0]);
}

#[test]
fn a_kernel_without_it_has_nothing_to_forget() {
    let script = Script::default();
    script.answer(Answer::Replay(vec![families(&[("nlctrl", 16)])]));
    assert!(Ipvs::over(Recorder::new(script)).unwrap().is_none());
}

fn bytes(of: &str) -> Vec<u8> {
    crate::wire::tests::bytes(of)
}

fn captured_server() -> Vec<u8> {
    bytes(include_str!("../../testdata/ipvs-server.hex"))
}

fn captured_destination() -> Vec<u8> {
    bytes(include_str!("../../testdata/ipvs-destination.hex"))
}

fn end_of_dump() -> Vec<u8> {
    families(&[])
}

/// A conversation with a kernel that has IPVS under the number 28.
fn start() -> (Script, Ipvs<Recorder>) {
    let script = Script::default();
    script.answer(Answer::Replay(vec![families(&[("IPVS", 28)])]));
    let ipvs = Ipvs::load_over(Recorder::new(script.clone()));
    // The end of a dump ends this as well as an acknowledgement.
    let ipvs = ipvs.unwrap().unwrap();
    script.take_requests();
    (script, ipvs)
}

fn key() -> ServerKey {
    ServerKey {
        protocol: 6,
        address: "10.96.0.1".parse().unwrap(),
        port: 80,
    }
}

fn server() -> Server {
    Server {
        key: key(),
        scheduler: "rr".to_owned(),
        flags: 0,
        timeout: 0,
    }
}

fn destination() -> Destination {
    Destination {
        address: "10.1.0.1".parse().unwrap(),
        port: 8080,
        weight: 1,
    }
}

/// What is sent for these changes: for each its command and attributes.
fn sent(changes: &[Change]) -> Vec<Vec<u8>> {
    let (script, mut ipvs) = start();
    assert!(ipvs.commit(changes).unwrap().is_empty());
    let requests = script.take_requests();
    let all = requests.iter().flat_map(|request| messages(request));
    all.map(|message| {
        let message = message.unwrap();
        assert_eq!(message.kind, 28);
        message.body.to_vec()
    })
    .collect()
}

/// An attribute.
fn attr(kind: u8, payload: &[u8]) -> Vec<u8> {
    let len = u8::try_from(payload.len() + 4).unwrap();
    let mut bytes = vec![len, 0, kind, 0];
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nest(kind: u8, content: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = attr(kind, &content.concat());
    bytes[3] = 0x80;
    bytes
}

#[test]
fn ipvs_012_a_new_server_carries_everything_that_makes_it() {
    let find = [
        attr(1, &[2, 0]),
        attr(2, &[6, 0]),
        attr(3, &[10, 96, 0, 1]),
        attr(4, &[0, 80]),
    ];
    let rest = [
        attr(6, b"rr\0"),
        attr(7, &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
        attr(8, &[0x58, 2, 0, 0]),
        attr(9, &[0xff; 4]),
    ];
    let sticky = Server {
        flags: Server::PERSISTENT,
        timeout: 600,
        ..server()
    };
    let whole = nest(1, &[&find[..], &rest].concat());
    let target = [
        attr(1, &[10, 1, 0, 1]),
        attr(2, &[0x1f, 0x90]),
        attr(11, &[2, 0]),
    ];
    let weighted = [
        attr(3, &[0; 4]),
        attr(4, &[1, 0, 0, 0]),
        attr(5, &[0; 4]),
        attr(6, &[0; 4]),
    ];
    let with = |command: u8, parts: &[&Vec<u8>]| {
        let mut bytes = vec![command, 1, 0, 0];
        for part in parts {
            bytes.extend_from_slice(part);
        }
        bytes
    };
    let short = nest(1, &find);
    let full = nest(2, &[&target[..], &weighted].concat());
    assert_eq!(
        sent(&[
            Change::AddServer(sticky.clone()),
            Change::SetServer(sticky),
            Change::DeleteServer(key()),
            Change::AddDestination(key(), destination()),
            Change::SetDestination(key(), destination()),
            Change::DeleteDestination(key(), destination()),
        ]),
        [
            with(1, &[&whole]),
            with(2, &[&whole]),
            with(3, &[&short]),
            with(5, &[&short, &full]),
            with(6, &[&short, &full]),
            with(7, &[&short, &nest(2, &target)]),
        ]
    );
}

#[test]
fn ipvs_013_servers_of_ipv6_have_a_length_for_a_netmask() {
    let six = Server {
        key: ServerKey {
            address: "fd00:96::1".parse().unwrap(),
            ..key()
        },
        ..server()
    };
    let request = sent(&[Change::AddServer(six)]).remove(0);
    let netmask = attr(9, &[128, 0, 0, 0]);
    assert!(request.ends_with(&netmask), "{request:?}");
}

#[test]
fn ipvs_014_captured_servers_and_destinations_are_understood() {
    let (script, mut ipvs) = start();
    script.answer(Answer::Replay(vec![captured_server(), end_of_dump()]));
    assert_eq!(ipvs.servers().unwrap(), [Listed::Server(server())]);
    script.answer(Answer::Replay(vec![captured_server(), end_of_dump()]));
    let stats = ipvs.server_stats().unwrap();
    assert_eq!(stats, [(key(), Stats::default())]);
    let counted = Counted {
        destination: destination(),
        method: Counted::MASQUERADE,
        active: 0,
        inactive: 0,
        persistent: 0,
    };
    script.answer(Answer::Replay(vec![captured_destination(), end_of_dump()]));
    assert_eq!(ipvs.destinations(&key()).unwrap(), [counted]);
    script.answer(Answer::Replay(vec![captured_destination(), end_of_dump()]));
    let stats = ipvs.destination_stats(&key()).unwrap();
    assert_eq!(stats, [(counted, Stats::default())]);
}

#[test]
fn wide_statistics_are_preferred_to_narrow_ones() {
    let narrow = nest(
        10,
        &[attr(1, &[7, 0, 0, 0]), attr(4, &[9, 0, 0, 0, 0, 0, 0, 0])],
    );
    let wide = nest(12, &[attr(1, &[7, 0, 0, 0, 1, 0, 0, 0])]);
    let read = |parts: &[&Vec<u8>]| {
        let parts: Vec<_> = parts.iter().map(|part| (*part).clone()).collect();
        let object = nest(1, &parts);
        let attr = crate::wire::attributes(&object).next().unwrap().unwrap();
        server::server_stats(&attr).unwrap()
    };
    let old = read(&[&narrow]);
    assert_eq!((old.connections, old.bytes_in), (7, 9));
    assert_eq!(read(&[&narrow, &wide]).connections, (1 << 32) + 7);
}

#[test]
fn ipvs_020_what_a_refusal_means_depends_on_the_change() {
    use Reason::{Exists, NoDestination, NoScheduler, NoServer, Other};
    let changes = [
        Change::AddServer(server()),
        Change::SetServer(server()),
        Change::DeleteServer(key()),
        Change::AddDestination(key(), destination()),
        Change::SetDestination(key(), destination()),
        Change::DeleteDestination(key(), destination()),
    ];
    for (errno, reasons) in [
        (libc::EEXIST, [Exists, Other, Other, Exists, Other, Other]),
        (libc::ESRCH, [NoServer; 6]),
        (
            libc::ENOENT,
            [
                NoScheduler,
                NoScheduler,
                Other,
                Other,
                NoDestination,
                NoDestination,
            ],
        ),
        (libc::EINVAL, [Other; 6]),
    ] {
        for (message, reason) in reasons.into_iter().enumerate() {
            let (script, mut ipvs) = start();
            script.answer(Answer::Refuse { message, errno });
            // The recorder says nothing more once it refused the first message.
            let changes = if message == 0 {
                &changes[..1]
            } else {
                &changes[..]
            };
            let refused = ipvs.commit(changes).unwrap();
            assert_eq!(refused.len(), 1);
            assert_eq!((refused[0].index, refused[0].reason), (message, reason));
        }
    }
}

#[test]
fn many_changes_take_few_datagrams_and_keep_their_numbers() {
    let (script, mut ipvs) = start();
    let each = |port| Change::DeleteServer(ServerKey { port, ..key() });
    let changes: Vec<_> = (0..1000).map(each).collect();
    script.agree();
    script.answer(Answer::Refuse {
        message: 5,
        errno: libc::ESRCH,
    });
    let refused = ipvs.commit(&changes).unwrap();
    let indices: Vec<_> = refused.iter().map(|refused| refused.index).collect();
    assert_eq!(indices, [256 + 5]);
    assert_eq!(script.take_requests().len(), 4);
    assert!(ipvs.commit(&[]).unwrap().is_empty());
    assert!(script.take_requests().is_empty());
}

#[test]
fn when_answers_are_lost_nothing_is_said_about_any_change() {
    let (script, mut ipvs) = start();
    let changes = [Change::DeleteServer(key())];
    for answer in [
        Answer::Overrun,
        Answer::Silence,
        Answer::Unsent(libc::ENOBUFS),
    ] {
        script.answer(answer);
        let error = ipvs.commit(&changes).unwrap_err();
        assert!(matches!(error, RequestError::Lost(_)), "{error:?}");
    }
    assert!(ipvs.commit(&changes).unwrap().is_empty());
}

#[test]
fn a_kernel_that_cannot_load_it_has_none() {
    let script = Script::default();
    script.answer(Answer::Refuse {
        message: 0,
        errno: libc::ENOENT,
    });
    assert!(Ipvs::load_over(Recorder::new(script)).unwrap().is_none());
}

proptest! {
    #[test]
    fn no_damage_makes_reading_panic(
        which in any::<bool>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut bytes = if which { captured_server() } else { captured_destination() };
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(keep.index(bytes.len()) + 1);
        for message in messages(&bytes).flatten() {
            let read = |attr: &Attribute<'_>| server::read_server(attr);
            let _ = read_nested(&message, NEW_SERVER, SERVER, read, &mut Vec::new());
            let read = |attr: &Attribute<'_>| server::server_stats(attr).map(Some);
            let _ = read_nested(&message, NEW_SERVER, SERVER, read, &mut Vec::new());
            for family in [Family::V4, Family::V6] {
                let read = |attr: &Attribute<'_>| server::read_destination(attr, family);
                let _ = read_nested(&message, NEW_DESTINATION, DESTINATION, read, &mut Vec::new());
            }
            let _ = read_family(&message);
        }
    }
}
