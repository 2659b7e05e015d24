// Programs with the official Go SDK; tests/support/sdk_program.py says how a test talks to them.
//
//	sdk producer '{"endpoint": "127.0.0.1:8081", "topic": "orders"}'
//
// Options of all: endpoint, topic, namespace, tls (true: as the SDK does it by default), access_key and secret_key.
package main

import (
	"fmt"
	"os"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func main() {
	programs := map[string]func(){
		"producer":           producer,
		"simple_consumer":    simpleConsumer,
		"push_consumer":      pushConsumer,
		"lite_push_consumer": litePushConsumer,
	}
	if len(os.Args) != 3 || programs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: sdk producer|simple_consumer|push_consumer|lite_push_consumer OPTIONS")
		os.Exit(2)
	}
	readOptions(os.Args[2])
	rocketmq.EnableSsl = options.TLS
	programs[os.Args[1]]()
}

func configuration() *rocketmq.Config {
	return &rocketmq.Config{
		Endpoint:      options.Endpoint,
		NameSpace:     options.Namespace,
		ConsumerGroup: options.Group,
		Credentials: &credentials.SessionCredentials{
			AccessKey:    options.AccessKey,
			AccessSecret: options.SecretKey,
		},
	}
}

func filter() *rocketmq.FilterExpression {
	if options.SQL {
		return rocketmq.NewFilterExpressionWithType(options.Expression, rocketmq.SQL92)
	}
	return rocketmq.NewFilterExpression(options.Expression)
}

// check ends the program: a client that cannot even start is for the test to see.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
