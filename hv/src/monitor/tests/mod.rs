//! What the monitor says and does.

mod command;
mod line;
mod model;
mod session;
mod several;
