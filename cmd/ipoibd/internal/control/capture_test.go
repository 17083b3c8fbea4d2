package control

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/capture"
	"ipoibd/cmd/ipoibd/internal/conns"
)

// safeBuffer is an output that a test watches while it is written.
type safeBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *safeBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.String()
}

// When the client ends, it still gets the end of the file and the totals. The capture outlives
// the time limits of other requests.
func TestCaptureIsCompleted(t *testing.T) {
	d := newFake()
	d.block = 1
	path := serve(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(conns.Timeout+time.Second, cancel)
	var out safeBuffer
	began := time.Now()
	sum, err := GetCapture(ctx, path, &capture.Request{}, &out)
	if err != nil || sum != (capture.Summary{Packets: 3, Lost: 2}) || !strings.HasSuffix(out.text(), "end") {
		t.Errorf("after %v: %+v, %v, %d bytes", time.Since(began), sum, err, out.Len())
	}
	if ctx.Err() == nil {
		t.Errorf("ended by itself after %v", time.Since(began))
	}
}

// So does a client when the daemon ends.
func TestCaptureIsCompletedByTheDaemon(t *testing.T) {
	d := newFake()
	d.block = 1
	path, stop := start(t, d)
	var out safeBuffer
	go func() {
		for d.captures.Load() == 0 && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		stop()
	}()
	sum, err := GetCapture(t.Context(), path, &capture.Request{}, &out)
	if err != nil || sum.Packets != 3 || !strings.HasSuffix(out.text(), "end") {
		t.Errorf("%+v, %v, %d bytes", sum, err, out.Len())
	}
	stop()
}

// Captures are limited, and a place is free again once a client has gone. A client that reads
// nothing does not delay the others.
func TestCapturesAreLimited(t *testing.T) {
	d := newFake()
	d.block = 1 << 20
	path := serve(t, d)
	var conns []net.Conn
	for range capture.MaxCaptures {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns = append(conns, c)
		if _, err := c.Write([]byte("POST /v1/capture HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "captures run", func() bool { return d.captures.Load() == capture.MaxCaptures })
	_, err := GetCapture(t.Context(), path, &capture.Request{}, &safeBuffer{})
	if err == nil || !strings.Contains(err.Error(), "too many captures; the limit is 4") {
		t.Errorf("a capture too many: %v", err)
	}
	began := time.Now()
	if _, err := GetStatus(t.Context(), path); err != nil || time.Since(began) > limit/10 {
		t.Errorf("status after %v: %v", time.Since(began), err)
	}
	for _, c := range conns {
		c.Close()
	}
	eventually(t, "the captures end with their clients", func() bool { return d.captures.Load() == 0 })
}

func TestCaptureRefusals(t *testing.T) {
	path := serve(t, newFake())
	for body, want := range map[string]string{
		`{"interface":"ib1"}`:        `no interface "ib1"`,
		`{"levels":["udp"]}`:         `unknown level "udp"; use one of ethernet, ipoib, roce, infiniband`,
		`{"levels":["roce","roce"]}`: "given twice",
		`{"snaplen":1}`:              "snapshot length 1 is not between 64 and 262144",
		`{"snaplen":262145}`:         "is not between",
		`{"direction":"up"}`:         `unknown direction "up"`,
		`{"duration":-1}`:            "duration is negative",
		`{"bpf":"1"}`:                "is not a BPF program",
		`{"filter":"` + strings.Repeat("x", 5000) + `"}`: "longer than 4096 bytes",
		`{"file":"/etc/passwd"}`:                         "unknown field",
	} {
		resp, err := do(t.Context(), limit, path, http.MethodPost, "/v1/capture", strings.NewReader(body), nil)
		if err == nil {
			resp.Body.Close()
			t.Errorf("%.40s was accepted", body)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", body, err, want)
		}
	}
	if _, err := do(t.Context(), limit, path, http.MethodGet, "/v1/capture", http.NoBody, nil); err == nil || !strings.Contains(err.Error(), "requires POST") {
		t.Errorf("GET: %v", err)
	}
}

// An output that fails ends the capture, with its error.
func TestCaptureOutputFails(t *testing.T) {
	d := newFake()
	d.block = 1
	path := serve(t, d)
	full := errors.New("disk full")
	if _, err := GetCapture(t.Context(), path, &capture.Request{}, failing{full}); !errors.Is(err, full) || errors.Is(err, errIncomplete) {
		t.Errorf("error %v", err)
	}
	eventually(t, "the capture ends", func() bool { return d.captures.Load() == 0 })
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// pipeResponse is a response to a client at the other end of a net.Pipe.
type pipeResponse struct{ net.Conn }

func (pipeResponse) Header() http.Header { return nil }
func (pipeResponse) WriteHeader(int)     {}

// A client that reads nothing for captureStall, counted from each write, loses its connection.
func TestCaptureOfAStoppedClientEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := net.Pipe()
		defer server.Close()
		defer client.Close()
		w := pipeResponse{server}
		out := captureOutput{w, http.NewResponseController(w)}
		for range 3 {
			go func() {
				time.Sleep(captureStall - time.Second)
				_, _ = client.Read(make([]byte, 1))
			}()
			if _, err := out.Write([]byte{1}); err != nil {
				t.Fatalf("the client reads slowly: %v", err)
			}
		}
		began := time.Now()
		_, err := out.Write([]byte{1})
		if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != captureStall {
			t.Errorf("the client has stopped: %v after %v, want a timeout after %v", err, took, captureStall)
		}
	})
}
