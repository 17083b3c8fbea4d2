package e2e

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// claimRate is how many crafted ARP messages per second must cost little.
const claimRate = 2000

// One address, claimed by turns from two queue pairs of one GID, costs an interface
// with many peers a fifth of a processor at most, and honest hosts do not feel it
// (security review M1).
func TestR07AbuseAlternatingClaims(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := newSiege(t, join)
	length := 3 * time.Second
	if *soak {
		length = time.Minute
	}
	s.a.Run("ip", "route", "add", "198.18.0.0/15", "via", s.mallory.addr.String()) // so that answers to invented peers get handles
	spoofer := newSpoofer(s)
	for i := range heardLimit {
		spoofer.ask(i)
		time.Sleep(time.Millisecond)
	}
	quiet := s.b.medianPing(s.a, time.Second)
	known := len(s.a.iface().Peers)
	target := s.a.qp().QPN
	cpu, start, claims := s.a.cpuTime(), time.Now(), 0
	done := make(chan time.Duration)
	go func() { done <- s.b.medianPing(s.a, length) }()
	for ; time.Since(start) < length; time.Sleep(10 * time.Millisecond) {
		for due := int(time.Since(start).Seconds() * claimRate); claims < due; claims++ {
			qpn := malloryQPN + hca.QPN(claims%2)
			packet := rightPacket(target, message(ipoib.EtherTypeARP, s.claim(qpn, s.mallory.addr).Append(nil)))
			packet.SrcQPN = qpn
			s.mallory.send(s.a.underlay(), packet)
		}
	}
	took := time.Since(start)
	share := float64(s.a.cpuTime()-cpu) / float64(took)
	busy := <-done
	t.Logf("%d peers, %d claims in %v: %.1f %% of a processor; median ping %v, was %v",
		known, claims, took.Round(time.Millisecond), 100*share, busy, quiet)
	if known < heardLimit/2 {
		t.Errorf("%d peers are not many", known)
	}
	// The pings cost the daemon something as well.
	if share > 0.2 {
		t.Errorf("%.1f %% of a processor, want 20 %% at most", 100*share)
	}
	if limit := 10 * (quiet + quiet/2); busy > limit {
		t.Errorf("median ping %v, want %v at most", busy, limit)
	}
	s.end(floodLoss)
}

// cpuTime is what the daemon has used of the processors (proc_pid_stat(5), utime and
// stime, in ticks of 10 ms).
func (h *host) cpuTime() time.Duration {
	h.tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.daemon.cmd.Process.Pid))
	if err != nil {
		h.tb.Fatal(err)
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

var pingTime = regexp.MustCompile(`time=([0-9.]+) ms`)

// medianPing is the median of the round trips within a time, 100 a second.
func (h *host) medianPing(other *host, length time.Duration) time.Duration {
	count := strconv.Itoa(int(length / (10 * time.Millisecond)))
	out, _ := h.Command("ping", "-n", "-i", "0.01", "-c", count, other.ip4()).CombinedOutput()
	var trips []time.Duration
	for _, m := range pingTime.FindAllStringSubmatch(string(out), -1) {
		ms, _ := strconv.ParseFloat(m[1], 64)
		trips = append(trips, time.Duration(ms*float64(time.Millisecond)))
	}
	if len(trips) == 0 {
		h.tb.Errorf("no echo request was answered:\n%s", out)
		return 0
	}
	slices.Sort(trips)
	return trips[len(trips)/2]
}
