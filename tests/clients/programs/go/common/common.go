// Package common has what the Go programs share: their action and their events.
package common

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Timeout is the time of one action, apart from that of a member of a group.
const Timeout = 30 * time.Second

const settleTime = 5 * time.Second

// Action is the argument of a program.
type Action struct {
	Action      string  `json:"action"`
	Bootstrap   string  `json:"bootstrap"`
	Topic       string  `json:"topic"`
	Count       int     `json:"count"`
	BaseMs      int64   `json:"base_ms"`
	Compression string  `json:"compression"`
	Idempotent  bool    `json:"idempotent"`
	From        string  `json:"from"`
	Timestamp   int64   `json:"timestamp"`
	Group       string  `json:"group"`
	Strategy    string  `json:"strategy"`
	Instance    *string `json:"instance"`
	Data        string  `json:"data"`
	ID          string  `json:"id"`
	Mode        string  `json:"mode"`
	Letters     string  `json:"letters"`
}

// Contents are those of a record that every program writes.
type Contents struct {
	Key, Value string
	Timestamp  int64
}

// RecordOf returns the contents of the record with a number.
func RecordOf(number int, baseMs int64) Contents {
	value := strings.Repeat(fmt.Sprintf("value-%d ", number), 20)
	return Contents{fmt.Sprintf("key-%d", number%7), value, baseMs + int64(number)}
}

var output sync.Mutex

// Report prints an event.
func Report(event string, fields map[string]any) {
	all := map[string]any{"event": event}
	for name, value := range fields {
		all[name] = value
	}
	line, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

// Produced reports the offsets of the records.
func Produced(offsets []int64) {
	fields := []string{"key", "value", "timestamp", "headers"}
	Report("produced", map[string]any{"offsets": offsets, "fields": fields})
}

// Record reports a record that was read.
func Record(offset, timestamp int64, key, value []byte, headers map[string]string) {
	Report("record", map[string]any{
		"offset": offset, "timestamp": timestamp, "key": string(key), "value": string(value), "headers": headers,
	})
}

// Saw reports what an administrator saw.
func Saw(aspect string, value any) {
	Report("saw", map[string]any{"aspect": aspect, "value": value})
}

// SawSettled reports what look returns: wanted as soon as it does.  Brokers learn of a change one after another.
func SawSettled[T comparable](aspect string, look func() (T, error), wanted T) error {
	end := time.Now().Add(settleTime)
	for {
		found, err := look()
		if found == wanted || time.Now().After(end) {
			if err == nil {
				Saw(aspect, found)
			}
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Unsupported reports that the client has no such feature, and ends the program.
func Unsupported(reason string) {
	Report("unsupported", map[string]any{"reason": reason})
	os.Exit(0)
}

// UntilEndOfInput returns a context that is cancelled once standard input ends.
func UntilEndOfInput() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx
}

// Run performs the action in the argument with a client that is the given module.
func Run(module string, actions map[string]func(*Action) error) {
	var action Action
	if err := json.Unmarshal([]byte(os.Args[1]), &action); err != nil {
		panic(err)
	}
	Report("version", map[string]any{"value": version(module)})
	if err := actions[action.Action](&action); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func version(module string) string {
	build, _ := debug.ReadBuildInfo()
	for _, each := range build.Deps {
		if each.Path == module {
			return strings.TrimPrefix(each.Version, "v")
		}
	}
	return ""
}
