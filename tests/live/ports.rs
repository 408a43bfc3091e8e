//! Two servers of the tests never share a port.

use std::collections::BTreeSet;

use crate::server::ReservedPort;

/// Without reservations about 12 of these 500 numbers would come twice.
#[test]
fn a_port_is_not_given_again_while_it_is_reserved() {
    let reserved: Vec<_> = (0..500).map(|_| ReservedPort::new()).collect();
    let numbers: BTreeSet<_> = reserved.iter().map(ReservedPort::get).collect();
    assert_eq!(numbers.len(), reserved.len());
    drop(reserved);
}
