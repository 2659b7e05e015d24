// One unary method, called again and again with the same bytes over grpc-go, and what that took.
//
// front_load -target HOST:PORT -method /package.Service/Method -request FILE -in-flight 64 -connections 4 -seconds 5
//
// prints one JSON object: calls, seconds, latencies in microseconds, failures. The warm-up does not count.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

type rawCodec struct{}

func (rawCodec) Marshal(value any) ([]byte, error) { return *value.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (rawCodec) Name() string { return "proto" }

func main() {
	target := flag.String("target", "127.0.0.1:8081", "HOST:PORT")
	method := flag.String("method", "", "/package.Service/Method")
	file := flag.String("request", "", "file with the bytes of the request; none: an empty one")
	inFlight := flag.Int("in-flight", 64, "calls at a time, over all connections")
	connections := flag.Int("connections", 1, "")
	seconds := flag.Float64("seconds", 5, "after the warm-up")
	warmUp := flag.Float64("warm-up", 1, "seconds")
	flag.Parse()

	var request []byte
	if *file != "" {
		read, err := os.ReadFile(*file)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		request = read
	}
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
	var counting, stopping atomic.Bool
	var failures atomic.Int64
	latencies := make([][]time.Duration, *inFlight)
	var done sync.WaitGroup
	for worker := 0; worker < *inFlight; worker++ {
		done.Add(1)
		go func() {
			defer done.Done()
			channel := channels[worker%len(channels)]
			var answer []byte
			for number := 0; !stopping.Load(); number++ {
				// What the SDKs send: a deadline, and an id of its own for each call.
				ctx, cancel := context.WithTimeout(base, 10*time.Second)
				ctx = metadata.AppendToOutgoingContext(ctx, "x-mq-request-id", fmt.Sprintf("%08d-%08d", worker, number))
				began := time.Now()
				err := channel.Invoke(ctx, *method, &request, &answer)
				took := time.Since(began)
				cancel()
				if err != nil {
					failures.Add(1)
					time.Sleep(10 * time.Millisecond)
				} else if counting.Load() {
					latencies[worker] = append(latencies[worker], took)
				}
			}
		}()
	}
	time.Sleep(time.Duration(*warmUp * float64(time.Second)))
	fmt.Println("counting") // whoever measures the server takes its processor time now
	counting.Store(true)
	began := time.Now()
	time.Sleep(time.Duration(*seconds * float64(time.Second)))
	counting.Store(false)
	took := time.Since(began)
	fmt.Println("counted")
	stopping.Store(true)
	done.Wait()
	var all []time.Duration
	for _, some := range latencies {
		all = append(all, some...)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	at := func(share float64) float64 {
		if len(all) == 0 {
			return 0
		}
		return float64(all[int(share*float64(len(all)-1))].Nanoseconds()) / 1000
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"calls": len(all), "seconds": took.Seconds(),
		"p50_us": at(0.5), "p99_us": at(0.99), "failures": failures.Load()})
}
