//! What the monitor says and does.

mod line;
mod model;
mod session;
mod several;
