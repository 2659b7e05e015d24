package main

import (
	"context"
	"fmt"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

// producer sends what it is told to, takes it back, and decides about transactions.
//
//	{"do": "send", "messages": [{"body", "tag", "keys", "properties", "message_group", "lite_topic", "priority",
//	                           "due": Unix seconds}]}
//	{"do": "recall", "body": of a message that was sent}
//	{"do": "transact", "body", "decision": "commit", "rollback", or none yet}
//	{"do": "decide", "body": of such a message, "decision"}
//
// `answer`: what its checker says when the broker asks, `commit`, `rollback`, or anything else for "not known"; every time
// that it is asked it tells {"event": "checked", ...}.
func producer() {
	checker := &rocketmq.TransactionChecker{Check: func(message *rocketmq.MessageView) rocketmq.TransactionResolution {
		say("checked", told(message))
		switch options.Answer {
		case "commit":
			return rocketmq.COMMIT
		case "rollback":
			return rocketmq.ROLLBACK
		}
		return rocketmq.UNKNOWN
	}}
	client, err := rocketmq.NewProducer(
		configuration(), rocketmq.WithTopics(options.Topic), rocketmq.WithTransactionChecker(checker),
	)
	check(err)
	check(client.Start())
	say("ready", nil)
	receipts := map[string]*rocketmq.SendReceipt{}
	transactions := map[string]rocketmq.Transaction{}
	background := context.Background()

	decide := func(asked command) (fields, error) {
		switch asked.Decision {
		case "commit":
			return nil, transactions[asked.Body].Commit()
		case "rollback":
			return nil, transactions[asked.Body].RollBack()
		}
		return nil, fmt.Errorf("decision %q is neither commit nor rollback", asked.Decision)
	}
	obey(map[string]func(command) (fields, error){
		"send": func(asked command) (fields, error) {
			ids := []string{}
			for _, each := range asked.Messages {
				sent, err := client.Send(background, toMessage(each))
				if err != nil {
					return nil, err
				}
				receipts[each.Body] = sent[0]
				ids = append(ids, sent[0].MessageID)
			}
			return fields{"message_ids": ids}, nil
		},
		"recall": func(asked command) (fields, error) {
			id, err := client.Recall(background, options.Topic, receipts[asked.Body].RecallHandle)
			return fields{"message_id": id}, err
		},
		"transact": func(asked command) (fields, error) {
			transaction := client.BeginTransaction()
			sent, err := client.SendWithTransaction(background, toMessage(outgoing{Body: asked.Body}), transaction)
			if err != nil {
				return nil, err
			}
			transactions[asked.Body] = transaction
			answer := fields{"message_id": sent[0].MessageID}
			if asked.Decision == "" {
				return answer, nil
			}
			_, err = decide(asked)
			return answer, err
		},
		"decide": decide,
	})
	check(client.GracefulStop())
}

func toMessage(given outgoing) *rocketmq.Message {
	message := &rocketmq.Message{Topic: options.Topic, Body: []byte(given.Body), Tag: given.Tag}
	message.SetKeys(given.Keys...)
	for name, value := range given.Properties {
		message.AddProperty(name, value)
	}
	if given.MessageGroup != "" {
		message.SetMessageGroup(given.MessageGroup)
	}
	if given.LiteTopic != "" {
		message.SetLiteTopic(given.LiteTopic)
	}
	if given.Priority != nil {
		check(message.SetPriority(*given.Priority))
	}
	if given.Due != 0 {
		message.SetDelayTimestamp(time.UnixMilli(int64(given.Due * 1000)))
	}
	return message
}
