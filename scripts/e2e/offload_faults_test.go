package e2e

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

const (
	// bulkPort is the port of the bulk connection, apart from that of the stream.
	bulkPort = "5202"
	// bulkRate leaves the processors time to answer probes; iperf3 sends blocks of 128 KB, so
	// that nearly all frames are as large as possible.
	bulkRate = "1G"
	// bulkTimes is how often `make faults` injects each fault with and without bulk traffic.
	bulkTimes = 3
	// bulkShare is the least share of the frames of bulk traffic that must be large.
	bulkShare = 0.1
	// bulkExtra is how much longer an outage may be with bulk traffic, besides a factor of two:
	// ten times the noise on a busy machine.
	bulkExtra = 200 * time.Millisecond
)

// bulkShort are the faults of the short form, one for each rung that make test reaches quickly.
var bulkShort = regexp.MustCompile(`send_error_sqe|send_error_err|reset_fails|cq_error|device_fatal`)

// Faults interrupt bulk TCP traffic, in frames of up to 64 KB that the device segments, no longer than
// light traffic. The large frames that are posted when a queue pair dies are released, and every frame
// is accounted for.
func TestR10FaultsInBulkTraffic(t *testing.T) {
	if enterLong(t) {
		return
	}
	times, say := min(timesEach(t), bulkTimes), progress(t)
	long := timesEach(t) > 1 // make faults
	var rows []row
	for _, f := range chosen(t) {
		if !long && !bulkShort.MatchString(f.name) {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			calm, bulk := row{fault: f}, row{fault: f}
			bulk.fault.name += ", bulk"
			p := newFaultyPair(t)
			say("%s", f.name)
			calm.measureIn(t, p, times, say)
			if f.perDaemon > 0 {
				p.restart()
			}
			before, start := p.faulty.book(), time.Now()
			stop := p.faulty.in(t).bulk(p.outside.in(t))
			say("%s", bulk.fault.name)
			bulk.measureIn(t, p, times, say)
			stop()
			p.requireReleased(t, before, f, start)
			rows = append(rows, calm, bulk)
			requireNotLonger(t, calm, bulk)
		})
	}
	say("%s", table(rows))
}

// bulk starts a connection that carries bulkRate. stop ends it.
func (h *host) bulk(to *host) (stop func()) {
	h.tb.Helper()
	to.background("iperf3", "--server", "--port", bulkPort)
	eventually(h.tb, startLimit, "iperf3 listens", func() bool {
		return strings.Contains(to.Run("ss", "-Hltn", "sport = "+bulkPort), bulkPort)
	})
	before := h.book()
	cmd := h.Command("iperf3", "--client", to.ip4(), "--port", bulkPort, "--time", streamLife, "--bitrate", bulkRate, "--interval", "0")
	if err := cmd.Start(); err != nil {
		h.tb.Fatalf("start iperf3: %v", err)
	}
	eventually(h.tb, startLimit, "large frames are sent", func() bool { return h.book().since(before).of("tx_large") > 100 })
	return func() { end(h.tb, cmd) }
}

// requireReleased checks, after the end of the bulk traffic, that no send is outstanding any more
// and that every frame is accounted for.
func (p *pair) requireReleased(t *testing.T, before book, f fault, start time.Time) {
	t.Helper()
	faulty, outside := p.faulty.in(t), p.outside.in(t)
	p.probe.silent.Store(true) // the counters of one moment are needed
	var k book
	eventually(t, recoveryLimit, "all sends end", func() bool {
		k = faulty.book()
		return k.of("tx_outstanding", "tx_queued") == 0
	})
	if posts, ended := k.of("tx_posts"), k.of("tx_completions", "tx_taken_back"); posts != ended {
		t.Errorf("%d sends posted, %d ended", posts, ended)
	}
	faulty.requireAccounts()
	outside.requireAccounts()
	if f.perDaemon == 0 { // else a daemon was started in between
		k = k.since(before)
	}
	frames, large := k.of("tx_read"), k.of("tx_large")
	t.Logf("%d frames in %v, of which %d were large, in %d segments; drops %v", frames, time.Since(start).Round(time.Second), large, k.of("tx_segments"), k.drops())
	if float64(large) < bulkShare*float64(frames) {
		t.Errorf("only %d of %d frames were large", large, frames)
	}
}

// requireNotLonger compares the outages with bulk traffic with those without.
func requireNotLonger(t *testing.T, calm, bulk row) {
	t.Helper()
	if len(calm.samples) == 0 || len(bulk.samples) == 0 {
		return
	}
	outage := func(s sample) time.Duration { return s.outage }
	without, with := median(calm.all(outage)), median(bulk.all(outage))
	t.Logf("median outage %v, with bulk traffic %v", short(without), short(with))
	if with > 2*without+bulkExtra {
		t.Errorf("the outage is %v with bulk traffic, %v without", with, without)
	}
}
