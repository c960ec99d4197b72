//! Workloads whose better engine changes: two others in turn, by fixed work.

use std::io;

use crate::{
    Work,
    memory::{Chain, Graph},
    paging::{Server, churn},
};

/// A chain of pages, and mappings that come and go.
pub fn phases(rounds: u64) -> io::Result<Work> {
    let mut chain = Chain::new()?;
    Ok(Box::new(move || {
        let mut sum = 0u64;
        for _ in 0..PAIRS {
            sum = sum.wrapping_mul(31).wrapping_add(chain.follow(rounds * crate::CHASE / crate::CHURN));
            sum = sum.wrapping_mul(31).wrapping_add(churn(rounds)?);
        }
        Ok(sum)
    }))
}

/// Phases of each kind: more work makes them longer.
const PAIRS: u64 = 3;

/// A graph, and children that answer requests.
pub fn phases_fork(rounds: u64) -> io::Result<Work> {
    let (mut graph, mut server) = (Graph::new()?, Server::new()?);
    Ok(Box::new(move || {
        let mut sum = 0u64;
        for _ in 0..2 {
            for _ in 0..rounds {
                sum = sum.wrapping_mul(31).wrapping_add(graph.search());
            }
            sum = sum.wrapping_mul(31).wrapping_add(server.serve(rounds * crate::SERVE / crate::SEARCHES)?);
        }
        Ok(sum)
    }))
}
