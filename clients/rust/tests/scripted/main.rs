//! A client against a scripted gateway over a real WebSocket.

mod connecting;
mod gateway;
mod receiving;
mod sending;
