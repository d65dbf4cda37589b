// SPDX-License-Identifier: Apache-2.0
//! The long form of the fuzz tests: `fuzz FRAMES [SEED]`.

mod access;
mod input;
mod pulls;
mod ranges;
mod sends;
mod tls;

const ROUND_FRAMES: u64 = 1_000_000;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let Some(Ok(frames)) = arguments.next() else {
        eprintln!("fuzz FRAMES [SEED]");
        std::process::exit(2);
    };
    let first = arguments.next().and_then(Result::ok).unwrap_or(1);
    let (mut staged, mut ended, mut answered, mut read, mut delivered) = (0, 0, 0, 0, 0);
    let (mut allowed, mut whole, mut sent_back) = (0, 0, 0);
    for seed in first..first + frames.div_ceil(ROUND_FRAMES) {
        let seen = sends::run(seed, ROUND_FRAMES.min(frames));
        staged += seen.staged;
        ended += seen.ended;
        sent_back += seen.sent_back;
        allowed += access::run(seed, ROUND_FRAMES.min(frames)).staged;
        answered += pulls::run(seed, ROUND_FRAMES.min(frames)).staged;
        whole += tls::run(seed, ROUND_FRAMES.min(frames)).staged;
        let seen = ranges::run(seed, ROUND_FRAMES.min(frames));
        read += seen.staged;
        delivered += seen.delivered;
    }
    println!("native readers: {frames} mutated sends, {staged} of them staged, no fault");
    println!("native readers: {ended} of the staged requests end a half message, no fault");
    println!("native readers: {sent_back} of them send a message back, no fault");
    println!("native readers: {frames} mutated signed requests, {allowed} of them taken, no fault");
    println!("native readers: {frames} pieces of TLS input, {whole} records whole, no fault");
    println!("native readers: {frames} mutated pulls, {answered} of them answered, no fault");
    println!("native readers: {frames} mutated records, {read} of them read, no fault");
    println!("native readers: {delivered} of the records delivered, no fault");
}
