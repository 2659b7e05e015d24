// A backlog received and acknowledged over grpc-go, as fast as the server allows.
//
// acknowledge_load -target HOST:PORT -receive FILE -acknowledge FILE -count 40000 -receivers 8 [-one-by-one]
//
// The files have the bytes of a ReceiveMessageRequest, and of an AckMessageRequest without entries. It prints one JSON object: messages
// that were acknowledged, and the seconds from the first receive to the last acknowledgement.
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
	var acknowledged, failures, numbers atomic.Int64
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
	}
	began := time.Now()
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
	done.Wait()
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"acknowledged": acknowledged.Load(),
		"seconds": time.Since(began).Seconds(), "failures": failures.Load()})
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
