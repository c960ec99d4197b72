//! What the monitor says and does.

mod agile;
mod command;
mod line;
mod model;
mod session;
mod several;
