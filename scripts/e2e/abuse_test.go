package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// memoryLimit bounds the growth of a daemon's peak resident memory by an
// attack, in KiB: half as much again as the largest growth seen, which a full
// table of peers causes while its status is read again and again.
const memoryLimit = 128 << 10

// siege is two honest hosts that exchange pings all the time, and a third host
// on their segment, without a daemon, from which mallory attacks.
type siege struct {
	t       *testing.T
	a, b    *host
	mallory *mallory
	talk    *talk // from b to a
	before  map[*host]condition
}

// condition is the part of a daemon's state that no attack may change.
type condition struct {
	status     status
	generation uint32 // of the queue pair
	memory     int    // resident, KiB
}

// newSiege starts the hosts; joinA starts a's daemon.
func newSiege(t *testing.T, joinA func(*host)) *siege {
	t.Helper()
	hosts := newHosts(t, 3)
	s := &siege{t: t, a: hosts[0], b: hosts[1], mallory: newMallory(hosts[2]), before: map[*host]condition{}}
	joinA(s.a)
	s.b.join()
	pingAll(s.a, s.b)
	for _, h := range s.honest() {
		s.before[h] = h.condition()
	}
	s.talk = s.b.talkTo(s.a)
	return s
}

func join(h *host) { h.join() }

func (s *siege) honest() []*host { return []*host{s.a, s.b} }

// end checks that the attack has done no harm: at most lost per cent of the
// talk is lost, and the daemons' condition has not changed.
func (s *siege) end(lost float64) {
	s.t.Helper()
	s.talk.end(lost)
	pingAll(s.a, s.b)
	for _, h := range s.honest() {
		requireNoLeak(s.t, s.before[h].status, h.daemon)
		h.requireAccounts()
		h.requireUnharmed(s.before[h])
	}
}

func (h *host) condition() condition {
	h.tb.Helper()
	return condition{h.daemon.status(), h.generation(), h.memory("VmRSS")}
}

func (h *host) requireUnharmed(before condition) {
	h.tb.Helper()
	if now := h.generation(); now != before.generation {
		h.tb.Errorf("host %d: the queue pair was rebuilt: generation %d, was %d", h.number, now, before.generation)
	}
	now, peak := h.memory("VmRSS"), h.memory("VmHWM")
	h.tb.Logf("host %d: resident memory %d -> %d KiB, at its peak %d KiB", h.number, before.memory, now, peak)
	if peak > before.memory+memoryLimit {
		h.tb.Errorf("host %d: resident memory %d KiB at its peak, was %d KiB", h.number, peak, before.memory)
	}
}

// requireAccounts checks that every frame since the start of the daemon is
// counted once. It retries, because counters are not read atomically: a frame in
// transit may briefly be counted twice or not at all.
func (h *host) requireAccounts() {
	h.tb.Helper()
	var k book
	open := func() int64 {
		k = h.book()
		return abs(k.of("hca_wire_rx_packets")-k.of("hca_rx_packets")) +
			abs(k.of("hca_rx_packets", "hca_tx_looped")-k.of("hca_rx_delivered", "hca_tx_loop_blocked")-k.of(recvDrops...)) +
			abs(k.of("rx_received")-k.of("rx_delivered", "rx_slow_path", "rx_probe", "rx_own_multicast")-k.all("rx_drop_")) +
			abs(k.of("neigh_from_host", "neigh_from_fabric", "neigh_pings")-k.of("neigh_to_fabric", "neigh_to_host", "neigh_echo_replies", "neigh_kept_sent", "neigh_kept", "neigh_own_multicast", "neigh_own_query_answers")-k.all("neigh_drop_")) +
			abs(k.of("tx_read", "tx_injected")-k.of("tx_sent", "tx_slow_path", "tx_outstanding", "tx_queued")-k.all("tx_drop_")-k.all("tx_wc_"))
	}
	start := time.Now()
	for open() != 0 {
		if time.Since(start) > countLimit {
			h.tb.Errorf("host %d: frames unaccounted for: %v", h.number, k.values)
			return
		}
	}
}

// abs returns the absolute value of a difference of counters.
func abs(difference uint64) int64 {
	if d := int64(difference); d < 0 {
		return -d
	}
	return int64(difference)
}

// generation returns the generation of ib0's queue pair.
func (h *host) generation() uint32 {
	h.tb.Helper()
	var s struct {
		Interfaces []struct {
			QP *struct {
				Generation uint32 `json:"generation"`
			} `json:"qp"`
		} `json:"interfaces"`
	}
	out, err := h.daemon.command("status", "--json").Output()
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	if err != nil || len(s.Interfaces) != 1 || s.Interfaces[0].QP == nil {
		h.tb.Fatalf("host %d has no queue pair: %v\n%s", h.number, err, out)
	}
	return s.Interfaces[0].QP.Generation
}

// memory returns a field of the daemon's /proc/PID/status, in KiB.
func (h *host) memory(field string) int {
	h.tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.daemon.cmd.Process.Pid))
	if err != nil {
		h.tb.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == field+":" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				h.tb.Fatalf("parse %s: %v", line, err)
			}
			return n
		}
	}
	h.tb.Fatalf("no field %s in\n%s", field, text)
	return 0
}

// talk sends one echo request every 10 ms, and prints when an answer comes.
type talk struct {
	tb  testing.TB
	cmd *exec.Cmd
	out *logBuffer
}

func (h *host) talkTo(other *host) *talk {
	h.tb.Helper()
	k := &talk{tb: h.tb, cmd: h.Command("ping", "-n", "-D", "-i", "0.01", other.ip4()), out: &logBuffer{keep: math.MaxInt}}
	k.cmd.Stdout, k.cmd.Stderr = k.out, k.out
	if err := k.cmd.Start(); err != nil {
		h.tb.Fatalf("start the talk: %v", err)
	}
	return k
}

var (
	talkSoFar  = regexp.MustCompile(`\d+/(\d+) packets`)
	talkAnswer = regexp.MustCompile(`icmp_seq=(\d+) ttl=`)
)

// calm is how long the talk goes on after an attack, and how long an answer may take.
const calm = 200 * time.Millisecond

// end ends the talk after a while. At most limit per cent of the requests may be lost. If more are still unanswered, it
// waits for their answers, which are late if a daemon or ping waits for a processor.
func (k *talk) end(limit float64) {
	k.tb.Helper()
	time.Sleep(calm)
	k.signal(syscall.SIGQUIT) // it prints how many it has sent
	sent := 0
	eventually(k.tb, repairLimit, "ping prints how many requests it has sent", func() bool {
		m := talkSoFar.FindStringSubmatch(k.out.String())
		if m != nil {
			sent, _ = strconv.Atoi(m[1])
		}
		return m != nil
	})
	most := int(limit / 100 * float64(sent))
	lost := k.unanswered(sent)
	for start := time.Now(); len(lost) > 0 && (time.Since(start) < calm || len(lost) > most && time.Since(start) < repairLimit); lost = k.unanswered(sent) {
		time.Sleep(calm / 10)
	}
	k.signal(syscall.SIGINT)
	_ = k.cmd.Wait() // exits with 1 after a loss
	k.tb.Logf("talk: %d echo requests, %d unanswered", sent, len(lost))
	if len(lost) > most {
		k.tb.Errorf("talk: %d of %d echo requests unanswered, more than %v %%: %v", len(lost), sent, limit, lost)
	}
}

// unanswered returns the numbers of those of the first requests that were not answered yet.
func (k *talk) unanswered(sent int) []int {
	lost := make(map[int]bool)
	for seq := 1; seq <= sent; seq++ {
		lost[seq] = true
	}
	for _, m := range talkAnswer.FindAllStringSubmatch(k.out.String(), -1) {
		seq, _ := strconv.Atoi(m[1])
		delete(lost, seq)
	}
	return slices.Sorted(maps.Keys(lost))
}

func (k *talk) signal(sig os.Signal) {
	k.tb.Helper()
	if err := k.cmd.Process.Signal(sig); err != nil {
		k.tb.Fatalf("the talk ended by itself: %v", err)
	}
}

// expect runs an attack and checks that it causes exactly the drops in want at
// h, and no others.
func (h *host) expect(name string, want map[string]uint64, attack func()) {
	h.tb.Helper()
	before := h.book()
	attack()
	var now book
	start := time.Now()
	for done := false; !done && time.Since(start) < countLimit; {
		now = h.book().since(before)
		done = true
		for reason, n := range want {
			done = done && now.of(reason) >= n
		}
	}
	h.tb.Logf("host %d: %s: %v after %v", h.number, name, want, time.Since(start).Round(time.Millisecond))
	for reason, n := range now.values {
		if isDrop(reason) && n != want[reason] {
			h.tb.Errorf("host %d: %s: %s rose by %d, want %d", h.number, name, reason, n, want[reason])
		}
	}
}

// countLimit is ten times the time from the last frame of an attack until it is
// counted.
const countLimit = 2 * time.Second

// dropNames matches the counters of drops and failed completions of the engine,
// the table and the TAP.
var dropNames = regexp.MustCompile(`^(rx|tx|neigh|tap)_(drop|wc)_`)

// isDrop reports whether a counter counts frames that were neither sent nor
// delivered.
func isDrop(name string) bool {
	switch name {
	case "hca_wire_socket_drops", "hca_wire_rx_drop_too_long":
		return true
	}
	return dropNames.MatchString(name) || slices.Contains(recvDrops, name)
}
