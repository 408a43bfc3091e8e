//! Which servers are asked, and which of their answers counts.

use std::time::Duration;

use super::map::{ANY, ClusterMap};
use super::reading::{Doubt, MapReading, Undecided};
use super::{Address, ClusterNodeId, ClusterServer, MapAnswer, ServerId, SlotRange};
use crate::protocol::flaw::Plant;
use crate::protocol::time::Instant;

const SLOTS: usize = 16;

fn at(name: &str) -> Address {
    (name.to_owned(), 6379)
}

fn member(node_id: &str, address: &str) -> ClusterServer {
    ClusterServer {
        node_id: node_id.into(),
        address: at(address),
    }
}

/// Returns the answer that these servers have the same number of slots each, all at addresses of their names.
fn told(masters: &[&str]) -> MapAnswer {
    let of_each = (SLOTS / masters.len().max(1)) as u16;
    let ranges = masters.iter().zip(0..).map(|(name, nth)| SlotRange {
        first: nth * of_each,
        last: (nth + 1) * of_each - 1,
        master: member(name, name),
    });
    MapAnswer {
        ranges: ranges.collect(),
        replicas: Vec::new(),
        has_failed: false,
        epoch: Some(1),
    }
}

fn later(seconds: u64) -> Instant {
    Instant::default() + Duration::from_secs(seconds)
}

/// Reads the map: each server answers what `answers` has for it.
fn read(
    map: &mut ClusterMap,
    (urls, seconds): (&[&str], u64),
    answers: impl Fn(&str) -> Option<MapAnswer>,
) -> (Vec<String>, Result<bool, Undecided>) {
    let urls: Vec<_> = urls.iter().map(|url| at(url)).collect();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut reading = MapReading::begin(map, later(seconds), &urls, &mut rng, Plant::NONE);
    let mut asked = Vec::new();
    while let Some(address) = reading.next_server() {
        asked.push(address.0.clone());
        let answer = answers(&address.0);
        reading.answered(address, answer);
    }
    (asked, reading.decide(later(seconds), map))
}

/// Returns a map of the servers `a`, `b` and `c`.
fn known() -> ClusterMap {
    let mut map = ClusterMap::new(SLOTS);
    let (_, decided) = read(&mut map, (&["a"], 0), |_| Some(told(&["a", "b", "c"])));
    assert_eq!(decided, Ok(true));
    map
}

fn owner(map: &ClusterMap, slot: u16) -> &str {
    &map.member(map.server(slot)).expect("a server").node_id
}

#[test]
fn a_reading_asks_two_masters_and_a_url_and_another_for_each_that_fails() {
    let urls = ["url", "name"];
    let mut map = known();
    let (asked, _) = read(&mut map, (&urls, 1), |_| Some(told(&["a", "b", "c"])));
    assert_eq!(asked.len(), 3);
    assert_eq!(asked.iter().filter(|name| urls.contains(&&***name)).count(), 1);
    let (mut asked, decided) = read(&mut map, (&urls, 1), |_| None);
    asked.sort_unstable();
    assert_eq!(asked, ["a", "b", "c", "name", "url"]);
    assert_eq!(decided, Err(Undecided::NoAnswer));
    assert_eq!(owner(&map, 0), "a");
    // A server that knows no slots, or another cluster, tells nothing.
    let (asked, decided) = read(&mut map, (&urls, 1), |name| match name {
        "a" => Some(told(&["a", "c"])),
        "b" => Some(told(&["x"])),
        _ => Some(MapAnswer {
            ranges: Vec::new(),
            ..told(&["a"])
        }),
    });
    assert_eq!((asked.len(), decided), (5, Ok(true)));
    assert_eq!(owner(&map, 8), "c");
}

#[test]
fn an_answer_without_a_known_server_counts_never_and_a_replica_is_known() {
    let mut map = known();
    let strange = |_: &str| {
        Some(MapAnswer {
            epoch: Some(99),
            ..told(&["x"])
        })
    };
    assert_eq!(read(&mut map, (&["url"], 1), strange).1, Err(Undecided::NoAnswer));
    let with_replica = MapAnswer {
        replicas: vec![member("r", "r")],
        ..told(&["a", "b", "c"])
    };
    let (_, decided) = read(&mut map, (&["url"], 2), |_| Some(with_replica.clone()));
    assert_eq!(decided, Ok(false));
    // All masters died, and the replica of one has its slots.
    let (_, decided) = read(&mut map, (&["url"], 3), |name| {
        (name == "r").then(|| told(&["r"]))
    });
    assert_eq!(decided, Ok(true));
    assert_eq!(owner(&map, 15), "r");
}

#[test]
fn a_server_that_was_cut_off_counts_only_alone() {
    let cut_off = MapAnswer {
        has_failed: true,
        epoch: Some(9),
        ..told(&["a", "b", "c"])
    };
    let promoted = told(&["r", "b", "c"]);
    let mut map = known();
    let (_, decided) = read(&mut map, (&["url"], 1), |name| match name {
        "url" => Some(promoted.clone()),
        _ => Some(cut_off.clone()),
    });
    assert_eq!(decided, Ok(true));
    assert_eq!(owner(&map, 0), "r");
    let (asked, decided) = read(&mut map, (&["url"], 2), |_| Some(cut_off.clone()));
    assert_eq!((asked.len(), decided), (4, Ok(true)));
    assert_eq!(owner(&map, 0), "a");
}

#[test]
fn the_highest_epoch_wins_then_most_answers_then_the_known_map() {
    let moved = told(&["a", "b"]);
    let mut map = known();
    let one_of = |name: &str, epoch| match name {
        "url" => Some(MapAnswer {
            epoch,
            ..moved.clone()
        }),
        _ => Some(told(&["a", "b", "c"])),
    };
    assert_eq!(
        read(&mut map, (&["url"], 1), |name| one_of(name, Some(1))).1,
        Ok(false)
    );
    // An unknown epoch counts as equal.
    assert_eq!(
        read(&mut map, (&["url"], 1), |name| one_of(name, None)).1,
        Ok(false)
    );
    let two = |name: &str| {
        Some(if name == "url" {
            told(&["a", "b", "c"])
        } else {
            moved.clone()
        })
    };
    let mut second = known();
    assert_eq!(read(&mut second, (&["url"], 1), two).1, Ok(true));
    assert_eq!(
        read(&mut map, (&["url"], 1), |name| one_of(name, Some(2))).1,
        Ok(true)
    );
    // Of two answers, the known map.
    let mut map = known();
    for other in ["a", "b", "c", "url"] {
        let (asked, decided) = read(&mut map, (&["url"], 1), |name| match name {
            _ if name == other => Some(moved.clone()),
            "url" | "a" => Some(told(&["a", "b", "c"])),
            _ => None,
        });
        let has_known = asked
            .iter()
            .any(|name| name != other && ["url", "a"].contains(&&**name));
        assert_eq!(decided, Ok(!has_known), "{other}: {asked:?}");
        map = known();
    }
}

#[test]
fn a_server_that_left_for_another_cluster_does_not_lead_there() {
    let with_replica = |masters: &[&str]| MapAnswer {
        replicas: vec![member("r", "url")],
        ..told(masters)
    };
    let elsewhere = || MapAnswer {
        epoch: Some(9),
        ..told(&["r", "x"])
    };
    let mut map = known();
    let own = |_: &str| Some(with_replica(&["a", "b", "c"]));
    assert_eq!(read(&mut map, (&["url"], 1), own).1, Ok(false));
    let (_, decided) = read(&mut map, (&["url"], 2), |name| match name {
        "url" => Some(elsewhere()),
        _ => Some(told(&["a", "b", "c"])),
    });
    assert_eq!((decided, owner(&map, 0)), (Ok(false), "a"));
    // Its own cluster serves nothing for a while.
    let mut map = known();
    assert_eq!(read(&mut map, (&["url"], 1), own).1, Ok(false));
    let (_, decided) = read(&mut map, (&["url"], 2), |name| match name {
        "url" => Some(elsewhere()),
        _ => Some(MapAnswer {
            has_failed: true,
            ..told(&["a", "b", "c"])
        }),
    });
    assert_eq!((decided, owner(&map, 0)), (Err(Undecided::NoAnswer), "a"));
    // All servers were replaced but for the replica, and a removed one is left, cut off: the old map is given up in time.
    let replaced = |name: &str| match name {
        "url" => Some(elsewhere()),
        "a" => Some(MapAnswer {
            has_failed: true,
            ..told(&["a", "b", "c"])
        }),
        _ => None,
    };
    assert_eq!(
        read(&mut map, (&["url"], 61), replaced).1,
        Err(Undecided::NoAnswer)
    );
    assert_eq!(read(&mut map, (&["url"], 62), replaced).1, Ok(true));
    assert_eq!(owner(&map, 0), "r");
    // Without the removed one, at once.
    let mut map = known();
    assert_eq!(read(&mut map, (&["url"], 1), own).1, Ok(false));
    let alone = |name: &str| (name == "url").then(&elsewhere);
    assert_eq!(read(&mut map, (&["url"], 2), alone).1, Ok(true));
}

#[test]
fn two_spellings_of_an_address_do_not_split_the_vote() {
    let spelled = |address: &str| {
        let mut answer = told(&["a", "d"]);
        answer.ranges[0].master = member("a", address);
        Some(answer)
    };
    let mut map = known();
    let (_, decided) = read(&mut map, (&["url"], 1), |name| match name {
        "url" => Some(told(&["a", "b", "c"])),
        name => spelled(name),
    });
    assert_eq!(decided, Ok(true));
    assert_eq!(owner(&map, 15), "d");
}

#[test]
fn the_cluster_of_most_urls_is_the_first_map_and_a_tie_is_refused() {
    let cluster = |name: &str| match name {
        "x" | "y" => Some(told(&["x", "y"])),
        "a" | "b" => Some(told(&["a", "b"])),
        "old" => Some(told(&["a", "z"])),
        "removed" => Some(told(&[])),
        _ => None,
    };
    let mut map = ClusterMap::new(SLOTS);
    let urls = ["removed", "x", "a", "away", "b"];
    let (asked, decided) = read(&mut map, (&urls, 0), cluster);
    assert_eq!((&asked[..], decided), (&urls.map(str::to_owned)[..], Ok(true)));
    assert_eq!(owner(&map, 15), "b");
    let mut map = ClusterMap::new(SLOTS);
    let (_, decided) = read(&mut map, (&["y", "a", "x", "old"], 0), cluster);
    let expected = [vec![at("y"), at("x")], vec![at("a"), at("old")]];
    assert!(
        matches!(&decided, Err(Undecided::TwoClusters(both)) if {
            let sorted = |urls: &[Address]| { let mut urls = urls.to_vec(); urls.sort_unstable(); urls };
            both.iter().zip(&expected).all(|(one, other)| sorted(one) == sorted(other))
        }),
        "{decided:?}"
    );
    assert_eq!(map.server(0), ANY);
}

#[test]
fn servers_may_be_replaced_one_by_one_or_be_at_new_addresses_at_once() {
    let mut map = known();
    for (masters, second) in [(["d", "b", "c"], 1), (["d", "e", "c"], 2), (["d", "e", "f"], 3)] {
        let answers = |name: &str| masters.contains(&name).then(|| told(&masters));
        assert_eq!(read(&mut map, (&["url"], second), answers).1, Ok(true));
    }
    let mut moved = told(&["d", "e", "f"]);
    for range in &mut moved.ranges {
        range.master.address.1 = 7_000;
    }
    let answers = |name: &str| (name == "url").then(|| moved.clone());
    assert_eq!(read(&mut map, (&["url"], 4), answers).1, Ok(true));
    assert_eq!(map.member(map.server(0)), Some(&moved.ranges[0].master));
}

#[test]
fn a_map_is_forgotten_when_no_server_of_it_answers_for_a_minute() {
    let rebuilt = |_: &str| Some(told(&["x", "y"]));
    let mut map = known();
    // A process that stood still has asked no server.
    assert_eq!(
        read(&mut map, (&["url"], 200), rebuilt).1,
        Err(Undecided::NoAnswer)
    );
    assert_eq!(
        read(&mut map, (&["url"], 259), rebuilt).1,
        Err(Undecided::NoAnswer)
    );
    assert_eq!(read(&mut map, (&["url"], 260), rebuilt).1, Ok(true));
    assert_eq!(owner(&map, 0), "x");
}

#[test]
fn a_slot_stays_where_moved_said_for_two_seconds() {
    let same = |_: &str| Some(told(&["a", "b", "c"]));
    let mut map = known();
    assert!(map.correct(later(10), 0, &at("c")));
    assert!(!map.correct(later(10), 0, &at("c")));
    assert_eq!(read(&mut map, (&["url"], 11), same).1, Ok(false));
    assert_eq!((owner(&map, 0), map.is_corrected(later(11))), ("c", true));
    assert_eq!(read(&mut map, (&["url"], 12), same).1, Ok(true));
    assert_eq!((owner(&map, 0), map.is_corrected(later(12))), ("a", false));
}

#[test]
fn a_server_is_a_node_id_at_an_address() {
    let confirm =
        |map: &mut ClusterMap, id, name: &str| map.confirm(id, &ClusterNodeId::from(name), Plant::NONE);
    let mut map = known();
    let first = map.server(0);
    assert!(confirm(&mut map, first, "a") && confirm(&mut map, first, ""));
    assert!(!confirm(&mut map, first, "x"));
    assert!(confirm(&mut map, ANY, "x"));
    // Another server at its address, which the cluster knows, is another one.
    let mut replaced = told(&["a", "b", "c"]);
    replaced.ranges[0].master = member("n", "a");
    assert_eq!(
        read(&mut map, (&["url"], 1), |_| Some(replaced.clone())).1,
        Ok(true)
    );
    let next = map.server(0);
    assert_ne!(next, first);
    assert!(confirm(&mut map, next, "n") && !confirm(&mut map, next, "a"));
    map.correct(later(1), 15, &at("a"));
    assert_eq!(map.server(15), next);
    // `MOVED` names an address only. The link learns the name.
    map.correct(later(1), 15, &at("d"));
    let named = map.server(15);
    assert!(confirm(&mut map, named, "d") && !confirm(&mut map, named, "x"));
    assert_eq!(named, ServerId(5));
}

#[test]
fn doubts_are_told() {
    let mut map = known();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut reading = MapReading::begin(&mut map, later(1), &[], &mut rng, Plant::NONE);
    let mut doubt = |answer| {
        let from = reading.next_server().expect("a server to ask");
        reading.answered(from, answer)
    };
    assert_eq!(doubt(Some(told(&["x"]))), Some(Doubt::Stranger));
    assert_eq!(doubt(Some(told(&[]))), Some(Doubt::NoSlots));
    let failed = MapAnswer {
        has_failed: true,
        ..told(&["b"])
    };
    assert_eq!(doubt(Some(failed)), Some(Doubt::Failed));
}
