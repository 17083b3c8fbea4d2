package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// event is a line of `ipoibd events --json`.
type event struct {
	Time     time.Time `json:"time"`
	Scope    string    `json:"scope"` // ib0, or the device's name
	Kind     string    `json:"kind"`
	Rung     string    `json:"rung"`
	Reason   string    `json:"reason"`
	Text     string    `json:"text"`
	Duration float64   `json:"duration_seconds"` // seconds, from detection to the end
	Outage   float64   `json:"outage_seconds"`   // seconds without service
}

// entered is the kind of the event that a rung was entered.
const entered = "rung"

// ends reports whether the event ends a recovery: because the interface is
// healthy, or because the port is unusable.
func (e event) ends() bool { return e.Kind == "recovered" || e.Kind == "stopped" }

func (e event) duration() time.Duration { return seconds(e.Duration) }
func (e event) outage() time.Duration   { return seconds(e.Outage) }

// detected returns the time at which an ended recovery began.
func (e event) detected() time.Time { return e.Time.Add(-e.duration()) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// client returns an HTTP client of the daemon. Starting a program for each
// command would make its time less exact.
func (d *daemon) client() *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", d.control)
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
}

// post sends a request.
func (d *daemon) post(path string, request any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	resp, err := d.client().Post("http://ipoibd"+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", path, body, resp.Status, answer)
	}
	return err
}

// journal collects a daemon's events.
type journal struct {
	mu     sync.Mutex
	events []event
	added  chan struct{} // signals new events
}

// followEvents reads the daemon's events until the daemon or the test ends.
func (d *daemon) followEvents() *journal {
	d.tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://ipoibd/v1/events?follow=true", http.NoBody)
	if err != nil {
		d.tb.Fatal(err)
	}
	resp, err := d.client().Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		d.tb.Fatalf("follow the events: %v %v", resp, err)
	}
	j := &journal{added: make(chan struct{}, 1)}
	ended := make(chan struct{})
	go func() { defer close(ended); j.read(resp.Body) }()
	d.tb.Cleanup(func() { cancel(); <-ended })
	return j
}

func (j *journal) read(body io.ReadCloser) {
	defer body.Close()
	for lines := json.NewDecoder(body); ; {
		var e event
		if lines.Decode(&e) != nil {
			return // the stream or the daemon has ended
		}
		j.mu.Lock()
		j.events = append(j.events, e)
		j.mu.Unlock()
		select {
		case j.added <- struct{}{}:
		default:
		}
	}
}

// since returns the events from the nth on.
func (j *journal) since(n int) []event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.events[n:])
}

func (j *journal) len() int { return len(j.since(0)) }

// wait waits until wanted returns true for one of the events from the nth on.
func (j *journal) wait(tb testing.TB, n int, limit time.Duration, what string, wanted func(event) bool) {
	tb.Helper()
	late := time.After(limit)
	for !slices.ContainsFunc(j.since(n), wanted) {
		select {
		case <-j.added:
		case <-late:
			tb.Fatalf("%s: no such event within %v; events: %+v", what, limit, j.since(n))
		}
	}
}

// faultRequest is the body of POST /v1/fault.
type faultRequest struct {
	Kind   string `json:"kind"`
	Device string `json:"device,omitempty"`
	After  int    `json:"after,omitempty"`
	Count  int    `json:"count,omitempty"`
	Verb   string `json:"verb,omitempty"`
}

// inject requests faults.
func (d *daemon) inject(requests ...faultRequest) {
	d.tb.Helper()
	for _, o := range requests {
		if err := d.post("/v1/fault", o); err != nil {
			d.tb.Fatalf("inject %s: %v\n%s", o.Kind, err, d.log)
		}
	}
}

// requirePost sends a request and fails the test if it is refused.
func (d *daemon) requirePost(path string, body map[string]string) {
	d.tb.Helper()
	if err := d.post(path, body); err != nil {
		d.tb.Fatalf("refused: %v\n%s", err, d.log)
	}
}
