package main

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

type fields = map[string]any

// What the test gave on the command line.
var options = struct {
	Endpoint   string
	Topic      string
	Group      string
	Namespace  string
	TLS        bool
	AccessKey  string `json:"access_key"`
	SecretKey  string `json:"secret_key"`
	Expression string
	SQL        bool
	Await      float64
	Answer     string
	Failures   int32
	Seconds    float64
	// body -> how many calls for that message fail
	FailingCalls map[string]int `json:"failing_calls"`
}{Expression: "*", Await: 2}

func readOptions(text string) {
	check(json.Unmarshal([]byte(text), &options))
}

var output sync.Mutex

// say tells the test; from any goroutine.
func say(event string, more fields) {
	line := fields{"event": event}
	for name, value := range more {
		line[name] = value
	}
	bytes, err := json.Marshal(line)
	check(err)
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(bytes, '\n'))
}

// A command of the test; which fields it has depends on `do`.
type command struct {
	Do        string
	Body      string
	Bodies    []string
	Count     int32
	Decision  string
	Invisible float64
	LiteTopic string `json:"lite_topic"`
	Messages  []outgoing
}

type outgoing struct {
	Body         string
	Tag          *string
	Keys         []string
	Properties   map[string]string
	MessageGroup string `json:"message_group"`
	LiteTopic    string `json:"lite_topic"`
	Priority     *int32
	Due          float64 // Unix seconds
}

// obey answers commands by their name until the test closes the pipe; an error is told, and the next command read.
func obey(answers map[string]func(command) (fields, error)) {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var asked command
		check(json.Unmarshal(lines.Bytes(), &asked))
		answer, err := answers[asked.Do](asked)
		if err != nil {
			say("error", fields{"error": err.Error()})
		} else {
			say("answer", answer)
		}
	}
	check(lines.Err())
}

// told is a received message in JSON.
func told(message *rocketmq.MessageView) fields {
	keys := slices.Sorted(slices.Values(message.GetKeys()))
	if keys == nil {
		keys = []string{}
	}
	properties := message.GetProperties()
	if properties == nil {
		properties = map[string]string{}
	}
	return fields{
		"time":           unixNow(),
		"message_id":     message.GetMessageId(),
		"topic":          message.GetTopic(),
		"body":           string(message.GetBody()),
		"tag":            message.GetTag(),
		"keys":           keys,
		"properties":     properties,
		"message_group":  message.GetMessageGroup(),
		"attempt":        message.GetDeliveryAttempt(),
		"born_host":      message.GetBornHost(),
		"born_timestamp": message.GetBornTimestamp().UnixMilli(),
	}
}

func unixNow() float64 {
	return float64(time.Now().UnixMicro()) / 1e6
}

func duration(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second))
}
