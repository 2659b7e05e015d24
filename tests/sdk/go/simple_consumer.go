package main

import (
	"context"
	"errors"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// simpleConsumer receives, acknowledges and extends what it is told to; knows messages by their bodies.
func simpleConsumer() {
	client, err := rocketmq.NewSimpleConsumer(
		configuration(),
		rocketmq.WithSimpleAwaitDuration(duration(options.Await)),
		rocketmq.WithSimpleSubscriptionExpressions(map[string]*rocketmq.FilterExpression{options.Topic: filter()}),
	)
	check(err)
	check(client.Start())
	say("ready", nil)
	held := map[string]*rocketmq.MessageView{}
	background := context.Background()
	obey(map[string]func(command) (fields, error){
		"receive": func(asked command) (fields, error) {
			received, err := client.Receive(background, asked.Count, duration(asked.Invisible))
			var refused *rocketmq.ErrRpcStatus
			if errors.As(err, &refused) && v2.Code(refused.Code) == v2.Code_MESSAGE_NOT_FOUND {
				err = nil // the SDK's way to say that there is none
			}
			messages := []fields{}
			for _, message := range received {
				held[string(message.GetBody())] = message
				messages = append(messages, told(message))
			}
			return fields{"time": unixNow(), "messages": messages}, err
		},
		"acknowledge": func(asked command) (fields, error) {
			for _, body := range asked.Bodies {
				if err := client.Ack(background, held[body]); err != nil {
					return nil, err
				}
			}
			return nil, nil
		},
		"change": func(asked command) (fields, error) {
			err := client.ChangeInvisibleDuration(held[asked.Body], duration(asked.Invisible))
			return fields{"time": unixNow()}, err
		},
	})
	check(client.GracefulStop())
}
