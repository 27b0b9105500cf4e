//! Breaks things under the database and checks what is left: kills, damaged journals, full disks.

mod crash;
mod disk_full;
mod support;
mod torn_journal;
