package main

import (
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

// pushConsumer tells of every message that its listener gets.
//
// `failures`: the listener fails with that many first calls for each message.
// `failing_calls`: body -> how many calls for that message fail.
// `seconds`: how long it works on a message.
func pushConsumer() {
	var mutex sync.Mutex
	calls := map[string]int32{}
	listener := &rocketmq.FuncMessageListener{Consume: func(message *rocketmq.MessageView) rocketmq.ConsumerResult {
		mutex.Lock()
		calls[message.GetMessageId()]++
		call := calls[message.GetMessageId()]
		failing := options.FailingCalls[string(message.GetBody())]
		mutex.Unlock()
		say("message", told(message))
		time.Sleep(duration(options.Seconds))
		if call <= options.Failures || int(call) <= failing {
			return rocketmq.FAILURE
		}
		return rocketmq.SUCCESS
	}}
	client, err := rocketmq.NewPushConsumer(
		configuration(),
		rocketmq.WithPushSubscriptionExpressions(map[string]*rocketmq.FilterExpression{options.Topic: filter()}),
		rocketmq.WithPushMessageListener(listener),
		rocketmq.WithPushConsumptionThreadCount(4),
	)
	check(err)
	check(client.Start())
	say("ready", nil)
	obey(nil)
	check(client.GracefulStop())
}
