package main

import (
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

// litePushConsumer tells of every message of the lite topics that it is told to subscribe.
//
//	{"do": "subscribe", "lite_topic"}
//	{"do": "unsubscribe", "lite_topic"}
func litePushConsumer() {
	listener := &rocketmq.FuncMessageListener{Consume: func(message *rocketmq.MessageView) rocketmq.ConsumerResult {
		fields := told(message)
		fields["lite_topic"] = message.GetLiteTopic()
		say("message", fields)
		return rocketmq.SUCCESS
	}}
	client, err := rocketmq.NewLitePushConsumer(
		configuration(),
		rocketmq.NewLitePushConsumerConfig(options.Topic, 30*time.Second),
		rocketmq.WithPushMessageListener(listener),
	)
	check(err)
	check(client.Start())
	say("ready", nil)
	obey(map[string]func(command) (fields, error){
		"subscribe":   func(asked command) (fields, error) { return nil, client.SubscribeLite(asked.LiteTopic) },
		"unsubscribe": func(asked command) (fields, error) { return nil, client.UnSubscribeLite(asked.LiteTopic) },
	})
	check(client.GracefulStop())
}
