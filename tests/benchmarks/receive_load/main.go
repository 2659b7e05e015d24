// Messages received and acknowledged over grpc-go: a backlog, as fast as the server allows, or one message at a time.
//
// receive_load -target HOST:PORT -receive FILE -acknowledge FILE -count 40000 -receivers 8 [-one-by-one]
// receive_load -target HOST:PORT -receive FILE -acknowledge FILE -count 300 -send FILE
//
// The files have the bytes of a ReceiveMessageRequest, of an AckMessageRequest without entries, and of a SendMessageRequest. It prints
// one JSON object. For a backlog: the messages that were acknowledged, and the seconds from the first receive to the last
// acknowledgement. With -send, each message is sent while a receive waits for it: microseconds from the start of the send to its answer,
// and to the end of the receive, one of each per message.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

const service = "/apache.rocketmq.v2.MessagingService/"

const codeOK = 20000

const warmUps = 5
const untilReceiveWaits = 5 * time.Millisecond

type rawCodec struct{}

func (rawCodec) Marshal(value any) ([]byte, error) { return *value.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (rawCodec) Name() string { return "proto" }

// field returns the bytes of the last length-delimited field with this number, or nil.
func field(message []byte, number protowire.Number) []byte {
	var found []byte
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil
		}
		message = message[size:]
		if n == number && kind == protowire.BytesType {
			value, size := protowire.ConsumeBytes(message)
			if size < 0 {
				return nil
			}
			found, message = value, message[size:]
			continue
		}
		size = protowire.ConsumeFieldValue(n, kind, message)
		if size < 0 {
			return nil
		}
		message = message[size:]
	}
	return found
}

// entry is the AckMessageEntry for one item of a receive, or nil if the item is no message.
func entry(item []byte) []byte {
	message := field(item, 2)
	if message == nil {
		return nil
	}
	system := field(message, 3)
	var made []byte
	made = protowire.AppendTag(made, 1, protowire.BytesType)
	made = protowire.AppendBytes(made, field(system, 3))
	made = protowire.AppendTag(made, 2, protowire.BytesType)
	return protowire.AppendBytes(made, field(system, 12))
}

// isOK tells whether the status of an AckMessageResponse is OK.
func isOK(answer []byte) bool {
	status := field(answer, 1)
	for len(status) > 0 {
		number, kind, size := protowire.ConsumeTag(status)
		if size < 0 {
			return false
		}
		status = status[size:]
		if number == 1 && kind == protowire.VarintType {
			code, _ := protowire.ConsumeVarint(status)
			return code == codeOK
		}
		status = status[protowire.ConsumeFieldValue(number, kind, status):]
	}
	return false
}

func read(name string) []byte {
	data, err := os.ReadFile(name)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return data
}

func main() {
	target := flag.String("target", "127.0.0.1:8081", "HOST:PORT")
	receiveFile := flag.String("receive", "", "bytes of a ReceiveMessageRequest")
	acknowledgeFile := flag.String("acknowledge", "", "bytes of an AckMessageRequest without entries")
	count := flag.Int64("count", 10000, "messages of the backlog")
	receivers := flag.Int("receivers", 8, "receives at a time")
	connections := flag.Int("connections", 4, "")
	sendFile := flag.String("send", "", "bytes of a SendMessageRequest, to measure one message at a time")
	oneByOne := flag.Bool("one-by-one", false, "one message for each AckMessage, as the SDKs do")
	flag.Parse()

	receive, prefix := read(*receiveFile), read(*acknowledgeFile)
	var channels []*grpc.ClientConn
	for i := 0; i < *connections; i++ {
		channel, err := grpc.NewClient(*target, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		channels = append(channels, channel)
	}
	base := metadata.AppendToOutgoingContext(context.Background(), "x-mq-client-id", "load@1@0@0", "x-mq-language", "GO",
		"x-mq-protocol", "v2", "x-mq-client-version", "5.1.2")
	var acknowledged, failures, numbers, microseconds atomic.Int64
	began := time.Now()
	call := func() (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithTimeout(base, 15*time.Second)
		return metadata.AppendToOutgoingContext(ctx, "x-mq-request-id", fmt.Sprintf("%016d", numbers.Add(1))), cancel
	}
	acknowledge := func(channel *grpc.ClientConn, entries [][]byte) {
		request := append([]byte(nil), prefix...)
		for _, one := range entries {
			request = protowire.AppendTag(request, 3, protowire.BytesType)
			request = protowire.AppendBytes(request, one)
		}
		ctx, cancel := call()
		defer cancel()
		var answer []byte
		if err := channel.Invoke(ctx, service+"AckMessage", &request, &answer); err != nil || !isOK(answer) {
			failures.Add(1)
			return
		}
		acknowledged.Add(int64(len(entries)))
		microseconds.Store(time.Since(began).Microseconds())
	}
	if *sendFile != "" {
		send := func() error {
			ctx, cancel := call()
			defer cancel()
			var answer []byte
			request := read(*sendFile)
			return channels[0].Invoke(ctx, service+"SendMessage", &request, &answer)
		}
		receiver := channels[len(channels)-1]
		receiveOne := func() [][]byte { return received(receiver, call, receive, &failures) }
		acknowledgeAll := func(entries [][]byte) { acknowledge(receiver, entries) }
		answered, arrived := oneAtATime(int(*count), send, receiveOne, acknowledgeAll, &failures)
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"answered_us": answered, "received_us": arrived,
			"failures": failures.Load()})
		return
	}
	began = time.Now()
	var done sync.WaitGroup
	for worker := 0; worker < *receivers; worker++ {
		done.Add(1)
		go func() {
			defer done.Done()
			channel := channels[worker%len(channels)]
			for acknowledged.Load() < *count && failures.Load() == 0 && time.Since(began) < 2*time.Minute {
				entries := received(channel, call, receive, &failures)
				if !*oneByOne {
					if len(entries) > 0 {
						acknowledge(channel, entries)
					}
					continue
				}
				var calls sync.WaitGroup
				for _, one := range entries {
					calls.Add(1)
					go func() {
						defer calls.Done()
						acknowledge(channel, [][]byte{one})
					}()
				}
				calls.Wait()
			}
		}()
	}
	done.Wait() // other receives may still wait for messages when the last one is acknowledged
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"acknowledged": acknowledged.Load(),
		"seconds": float64(microseconds.Load()) / 1e6, "failures": failures.Load()})
}

// oneAtATime sends messages while a receive waits for each; it returns the microseconds until the answers, and until the receives end.
func oneAtATime(count int, send func() error, receive func() [][]byte, acknowledge func([][]byte),
	failures *atomic.Int64) (answered, arrived []int64) {
	for number := -warmUps; number < count && failures.Load() == 0; number++ {
		ended := make(chan time.Time, 1)
		var entries [][]byte
		go func() {
			entries = receive()
			ended <- time.Now()
		}()
		pause := untilReceiveWaits
		if number == -warmUps {
			pause = 100 * untilReceiveWaits // opens the connections
		}
		time.Sleep(pause)
		started := time.Now()
		if send() != nil {
			failures.Add(1)
		}
		answer := time.Since(started)
		arrival := (<-ended).Sub(started)
		if len(entries) != 1 {
			failures.Add(1)
			break
		}
		acknowledge(entries)
		if number >= 0 {
			answered, arrived = append(answered, answer.Microseconds()), append(arrived, arrival.Microseconds())
		}
	}
	return answered, arrived
}

// received makes one ReceiveMessage and returns the entries that acknowledge its messages.
func received(channel *grpc.ClientConn, call func() (context.Context, context.CancelFunc), request []byte,
	failures *atomic.Int64) [][]byte {
	ctx, cancel := call()
	defer cancel()
	stream, err := channel.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, service+"ReceiveMessage")
	if err == nil {
		err = stream.SendMsg(&request)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	var entries [][]byte
	for err == nil {
		var item []byte
		if err = stream.RecvMsg(&item); err == nil {
			if one := entry(item); one != nil {
				entries = append(entries, one)
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		failures.Add(1)
	}
	return entries
}
