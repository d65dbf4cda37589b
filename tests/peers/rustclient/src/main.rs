// SPDX-License-Identifier: Apache-2.0
//! RocketMQ's Rust client as a command line: send and consume, one JSON line per event.
#![recursion_limit = "512"]

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rocketmq_client_rust::{
    ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus, DefaultMQProducer, DefaultMQPushConsumer, MQPushConsumer,
    MessageListenerConcurrently,
};
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};
use serde_json::{json, Value};

const STATUS_DEADLINE: i32 = 3;

/// Print an event; lines that do not begin so are the library's own logging.
fn report(event: &str, facts: &Value) {
    println!("{{\"event\":{},{}", json!(event), &facts.to_string()[1..]);
}

struct Listener(Arc<AtomicUsize>);

impl MessageListenerConcurrently for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        for message in messages {
            let body = message.body().unwrap_or_default();
            let body = String::from_utf8_lossy(&body);
            let tag = message.get_tags().map(|it| it.to_string());
            report("received", &json!({"body": body, "tag": tag}));
        }
        self.0.fetch_add(messages.len(), Ordering::SeqCst);
        Ok(ConsumeConcurrentlyStatus::ConsumeSuccess)
    }
}

async fn send(runtime: Arc<ClientRuntime>, options: &HashMap<String, String>) -> ClientResult<()> {
    let mut producer = DefaultMQProducer::builder(runtime)
        .producer_group("RustProducer".to_owned())
        .name_server_addr(options["namesrv"].clone())
        .build();
    producer.start().await?;
    for number in 0..options["count"].parse().expect("--count") {
        let number: usize = number;
        let body = format!("rust-{number}: äöü 中文");
        let message = Message::builder()
            .topic(options["topic"].as_str())
            .tags("TagA")
            .body_slice(body.as_bytes())
            .build_unchecked();
        let result = producer.send_with_timeout(message, 30_000).await?;
        report("sent", &json!({"body": body, "result": format!("{result:?}")}));
    }
    producer.shutdown().await;
    Ok(())
}

async fn consume(
    runtime: Arc<ClientRuntime>,
    options: &HashMap<String, String>,
) -> ClientResult<bool> {
    let received = Arc::new(AtomicUsize::new(0));
    let mut consumer = DefaultMQPushConsumer::builder(runtime)
        .consumer_group(options["group"].clone())
        .name_server_addr(options["namesrv"].clone())
        .build();
    consumer.subscribe(options["topic"].as_str(), "*").await?;
    consumer.register_message_listener_concurrently(Listener(Arc::clone(&received)));
    consumer.start().await?;
    report("started", &json!({"group": options["group"]}));
    let count: usize = options["count"].parse().expect("--count");
    let end = Instant::now() + Duration::from_secs(options["timeout-s"].parse().expect("seconds"));
    while received.load(Ordering::SeqCst) < count && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let is_done = received.load(Ordering::SeqCst) >= count;
    consumer.shutdown().await;
    Ok(is_done)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let options: HashMap<String, String> = words[1..]
        .chunks_exact(2)
        .map(|pair| (pair[0].trim_start_matches('-').to_owned(), pair[1].clone()))
        .collect();
    let owner = RuntimeOwner::plan(RuntimeConfig::default()).expect("a runtime").build()?;
    let telemetry = rocketmq_observability::install_global(&Default::default())?;
    let runtime = ClientRuntime::try_new(
        owner.root_context().component("client"),
        ClientRuntimeConfig::default(),
        telemetry.handle(),
    )?;
    let is_done = match words[0].as_str() {
        "send" => send(runtime, &options).await.map(|()| true)?,
        _ => consume(runtime, &options).await?,
    };
    std::process::exit(if is_done { 0 } else { STATUS_DEADLINE });
}
