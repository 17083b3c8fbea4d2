package main

import (
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
)

// pinged is a daemon whose peer answers requests of up to largest bytes.
func pinged(largest int) *fake {
	f := newFake()
	f.status.Interfaces = []report.Interface{{Name: "ib0", MTU: 2044}}
	f.echo = func(size int) *report.Echo {
		if size > largest {
			return nil
		}
		return &report.Echo{GID: hca.GID{10: 0xff, 11: 0xff, 12: 192, 14: 2, 15: 2}, QPN: 0x22, RoundTrip: journal.Seconds(1234567 * time.Nanosecond)}
	}
	return f
}

func TestPing(t *testing.T) {
	path, _ := serve(t, pinged(4096))
	out, _, err := ipoibd(t, "ping", "10.0.0.2", "--count", "2", "--interval", "10ms", "--control", path)
	want := `request 1: 56 bytes from 192.0.2.2, QP 0x000022, in 1.235ms
request 2: 56 bytes from 192.0.2.2, QP 0x000022, in 1.235ms
10.0.0.2: 2 sent, 2 answered, 0 % lost; round trip min 1.235ms, median 1.235ms, max 1.235ms
`
	if err != nil || out != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
}

// A command without any answer fails, and says so for each request.
func TestPingWithoutAnswer(t *testing.T) {
	path, _ := serve(t, pinged(0))
	out, _, err := ipoibd(t, "ping", "10.0.0.2", "--count", "1", "--control", path)
	if err == nil || out != "request 1: no answer within 2s\n10.0.0.2: 1 sent, 0 answered, 100 % lost\n" || !strings.Contains(err.Error(), "does not run ipoibd") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestPingSweep(t *testing.T) {
	for largest, want := range map[int]string{
		2044: "packets of all sizes up to the MTU of 2044 pass",
		4096: "packets of all sizes up to the MTU of 2044 pass",
		1400: "packets of up to 1400 bytes pass, larger ones do not, and the MTU of ib0 is 2044: set it to 1400",
		1024: "packets of up to 1024 bytes pass",
		64:   "packets of up to 64 bytes pass",
		20:   "no answer to a packet of any size",
	} {
		path, stop := serve(t, pinged(largest))
		out, _, err := ipoibd(t, "ping", "10.0.0.2", "--sweep", "--count", "1", "--control", path)
		if err != nil {
			out += err.Error()
		}
		if !strings.Contains(out, want) || (err == nil) != (largest >= 2044) {
			t.Errorf("%d: %v\n%s", largest, err, out)
		}
		stop()
	}
}

func TestMistakesOfPing(t *testing.T) {
	path, _ := serve(t, pinged(0))
	for args, want := range map[string]string{
		"":                         "ping takes one IP address, GID or MAC",
		"10.0.0.2 10.0.0.3":        "ping takes one IP address, GID or MAC",
		"10.0.0.2 --count -1":      "--count: -1 is negative",
		"10.0.0.2 --interval 1ms":  "--interval: 1ms is less than 10ms",
		"10.0.0.2 --timeout 2m":    "--timeout: 2m0s must be above 0",
		"10.0.0.2 --size big":      `--size: "big" is not a whole number`,
		"10.0.0.2 --interface ib7": `no interface "ib7"`,
	} {
		_, _, err := ipoibd(t, append(strings.Fields("ping "+args), "--control", path)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}
