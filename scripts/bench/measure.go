package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

const (
	// toolLimit is how much longer a tool may take than its measurement.
	toolLimit   = 15 * time.Second
	iperfPort   = "5201" // iperf3's default
	sockperfUDP = "11111"
	rttSize     = 64 // bytes
)

// trial is one contender on its hosts in one round.
type trial struct {
	a, b     *host
	daemons  []*process
	figures  figures
	failures []string
}

// measure performs all measurements. A failed one does not prevent the others.
func (t *trial) measure(ctx context.Context) {
	for _, m := range []struct {
		what string
		run  func(context.Context) error
	}{
		{"TCP, 1 stream", t.oneStream},
		{"TCP, 4 streams", t.fourStreams},
		{"UDP, 64 bytes", func(ctx context.Context) error { return t.udp(ctx, 64, udp64) }},
		{"UDP, 1400 bytes", func(ctx context.Context) error { return t.udp(ctx, 1400, udp1400) }},
		{"round trip", t.roundTrip},
		{"round trip beside TCP", t.roundTripBesideTCP},
	} {
		if err := m.run(ctx); err != nil {
			t.failures = append(t.failures, m.what+": "+err.Error())
		}
	}
}

// oneStream also measures the daemons' processor time, over both directions.
func (t *trial) oneStream(ctx context.Context) error {
	before, err := t.cpu()
	if err != nil {
		return err
	}
	there, err := t.iperf(ctx)
	if err != nil {
		return err
	}
	t.figures[tcp1There] = there.gbits()
	back, err := t.iperf(ctx, "--reverse")
	if err != nil {
		return err
	}
	t.figures[tcp1Back] = back.gbits()
	after, err := t.cpu()
	if err != nil {
		return err
	}
	if len(t.daemons) > 0 {
		t.figures[cpuPerGB] = (after - before).Seconds() / (float64(there.Bytes+back.Bytes) / 1e9)
	}
	return nil
}

// cpu returns the processor time of all daemons.
func (t *trial) cpu() (sum time.Duration, err error) {
	for _, p := range t.daemons {
		used, err := p.cpu()
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

func (t *trial) fourStreams(ctx context.Context) error {
	there, err := t.iperf(ctx, "--parallel", "4")
	if err != nil {
		return err
	}
	t.figures[tcp4There] = there.gbits()
	back, err := t.iperf(ctx, "--parallel", "4", "--reverse")
	if err != nil {
		return err
	}
	t.figures[tcp4Back] = back.gbits()
	return nil
}

// udp sends as fast as iperf3 can, and counts the datagrams that arrive.
func (t *trial) udp(ctx context.Context, size int, into metric) error {
	got, err := t.iperf(ctx, "--udp", "--bitrate", "0", "--length", strconv.Itoa(size))
	if err != nil {
		return err
	}
	t.figures[into] = float64(got.Bytes) / float64(size) / got.Seconds / 1e3
	return nil
}

// iperf measures from a to b with iperf3, which sends for the given seconds. Each
// measurement has a new server, because one whose client failed stays busy.
func (t *trial) iperf(ctx context.Context, args ...string) (received, error) {
	out, err := t.underServer(ctx, "tcp", iperfPort, []string{"iperf3", "--server"},
		append([]string{"iperf3", "--json", "--client", t.b.inner, "--time", strconv.Itoa(*seconds)}, args...))
	if err != nil {
		return received{}, err
	}
	return parseIperf([]byte(out))
}

func (t *trial) roundTrip(ctx context.Context) error {
	median, p99, err := t.sockperf(ctx)
	if err != nil {
		return err
	}
	t.figures[rttMedian], t.figures[rttP99] = median, p99
	return nil
}

// sockperf returns the median and the 99th percentile of round trips from a to b, in microseconds.
func (t *trial) sockperf(ctx context.Context) (median, p99 float64, err error) {
	server := []string{"sockperf", "server", "-i", t.b.inner, "-p", sockperfUDP}
	client := []string{
		"sockperf", "ping-pong", "-i", t.b.inner, "-p", sockperfUDP,
		"-m", strconv.Itoa(rttSize), "-t", strconv.Itoa(*seconds), "--full-rtt",
	}
	out, err := t.underServer(ctx, "udp", sockperfUDP, server, client)
	if err != nil {
		return 0, 0, err
	}
	return parseSockperf(out)
}

// roundTripBesideTCP measures round trips while one TCP stream sends from a to b.
func (t *trial) roundTripBesideTCP(ctx context.Context) error {
	const lead, tail = time.Second, 2 * time.Second // the stream sends for so much longer at both ends
	stream := make(chan error, 1)
	go func() {
		_, err := t.iperf(ctx, "--time", strconv.Itoa(*seconds+int((lead+tail).Seconds())))
		stream <- err
	}()
	time.Sleep(lead)
	_, p99, err := t.sockperf(ctx)
	if err := errors.Join(err, <-stream); err != nil {
		return err
	}
	t.figures[rttLoaded] = p99
	return nil
}

// underServer runs a client on a while its server runs on b, and returns the client's output.
func (t *trial) underServer(ctx context.Context, protocol, port string, server, client []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(*seconds)*time.Second+toolLimit)
	defer cancel()
	p, err := t.b.start(ctx, server[0], server[1:]...)
	if err != nil {
		return "", err
	}
	defer p.stop()
	listening := []string{"--no-header", "--listening", "--numeric", "--" + protocol, "sport = " + port}
	if err := t.b.retry(ctx, true, "ss", listening...); err != nil {
		return "", p.explain(fmt.Errorf("start the server: %w", err))
	}
	return t.a.run(ctx, client[0], client[1:]...)
}
