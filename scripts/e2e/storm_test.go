package e2e

import (
	"cmp"
	"flag"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// Flags of the storm; `make faults` runs a long storm.
var (
	stormSeed   = flag.Uint64("storm.seed", 0, "seed of the storm's commands and their times; 0 selects a random seed")
	stormLength = flag.Duration("storm.length", 10*time.Second, "how long the storm lasts")
)

const (
	// stormEvery is the mean time between two commands.
	stormEvery = 100 * time.Millisecond
	// lull is the longest time before a command is undone.
	lull = time.Second
	// calmLimit is twice the longest pause of an interface's ladder; the test
	// ends the pauses of a device by a command.
	calmLimit = 2 * time.Minute
	// forgetLimit is longer than an idle peer without an address is kept (heardIdle
	// of package neigh, and its sweep).
	forgetLimit = 3 * time.Minute
	// stormMemory is how much a daemon's memory may grow in a storm, in KiB: the
	// allocator keeps freed memory.
	stormMemory = 64 << 10
)

// command is a request to a host's daemon in a storm.
type command struct {
	at   time.Duration // from the storm's start
	host int           // 0: the faulty one, 1: the outside one
	path string
	body any
}

// Two daemons under traffic get random commands and faults, many at the same time. Afterwards they
// are healthy, the TCP connection still works, every frame is accounted for, and nothing leaks.
func TestR10StormUnderTraffic(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	storm := drawn(t)
	p := newQuietPair(t)
	hosts := p.hosts()
	outside := p.outside.daemon.followEvents() // it takes goroutines of the daemon
	var before []condition
	for _, h := range hosts {
		before = append(before, h.condition())
	}
	t.Run("R09/TCP lives on", func(t *testing.T) { p.run(t, storm, p.journal, outside) })
	for i, h := range hosts {
		requireNoLeak(t, before[i].status, h.daemon)
		h.requireAccounts()
		h.requireMemory(before[i])
	}
	pingAll(hosts...)
	requirePeers(t, hosts, addressedPeer)
	defer func() {
		if t.Failed() {
			t.Log(wrongPeers(hosts, everyPeer))
		}
	}()
	eventually(t, forgetLimit, "peers known only by the QPN of a probe are forgotten", func() bool {
		return len(wrongPeers(hosts, everyPeer)) == 0
	})
}

// drawn returns the storm selected by the flags.
func drawn(t *testing.T) []command {
	t.Helper()
	seed := cmp.Or(*stormSeed, rand.Uint64())
	t.Logf("-storm.seed=%d -storm.length=%v", seed, *stormLength)
	return newStorm(seed, *stormLength)
}

func (p *pair) hosts() []*host { return []*host{p.faulty, p.outside} }

// run gives the commands under traffic and waits until everything is healthy.
func (p *pair) run(t *testing.T, storm []command, said ...*journal) {
	p.talk(t)
	p.giveCommands(t, storm)
	calm := time.Now()
	for _, h := range p.hosts() {
		h.undoFaults()
	}
	for _, h := range p.hosts() {
		h.waitWell(t)
		t.Logf("host %d: well %v after the storm", h.number, time.Since(calm).Round(time.Millisecond))
	}
	p.probe.waitAnswered(t, recoveryLimit)
	entered := map[string]int{}
	for _, j := range said {
		for rung, n := range j.rungs() {
			entered[rung] += n
		}
	}
	t.Logf("rungs entered: %v", entered)
	took, err := p.stream.waitMoves(calmLimit)
	t.Logf("pinged %v after the storm, TCP moves %v later", time.Since(calm)-took, took)
	if err != nil && entered[giveUp] == 0 {
		t.Error(err)
	}
	p.requireKept(t)
}

// giveCommands gives each command at its time, regardless of the results of the others.
func (p *pair) giveCommands(t *testing.T, storm []command) {
	t.Helper()
	start := time.Now()
	var commands sync.WaitGroup
	var mu sync.Mutex
	answers := map[string]int{}
	for _, c := range storm {
		time.Sleep(time.Until(start.Add(c.at)))
		commands.Go(func() {
			answer := p.hosts()[c.host].daemon.post(c.path, c.body)
			mu.Lock()
			defer mu.Unlock()
			answers[verdict(t, answer)]++
		})
	}
	commands.Wait()
	t.Logf("%d commands in %v: %v", len(storm), time.Since(start).Round(time.Millisecond), answers)
}

// verdict classifies answers. A command that cannot be executed at the moment is not
// a failure; any other error is.
func verdict(t *testing.T, answer error) string {
	switch {
	case answer == nil:
		return "taken"
	case strings.Contains(answer.Error(), " 409 "):
		return "refused for now"
	}
	t.Errorf("command failed: %v", answer)
	return "failed"
}

// undoFaults undoes lasting faults and suspensions.
func (h *host) undoFaults() {
	h.tb.Helper()
	h.daemon.inject(faultRequest{Kind: "clear"})
	_ = h.daemon.post("/v1/fault", faultRequest{Kind: "replug"}) // refused if nothing is unplugged
	_ = h.daemon.post("/v1/resume", nothing)                     // refused if nothing is suspended
}

// waitWell waits until the daemon is healthy. Like an operator, it requests a
// retry while the daemon waits for a device.
func (h *host) waitWell(t *testing.T) {
	t.Helper()
	eventually(t, calmLimit, "all is well", func() bool {
		if h.undoPortFaults() && h.iface().State == "up" {
			return true
		}
		_ = h.daemon.post("/v1/fault", faultRequest{Kind: "port_up"}) // refused while the device is away
		_ = h.daemon.post("/v1/recover", nothing)                     // refused during a recovery
		time.Sleep(time.Second)
		return false
	})
}

// undoPortFaults undoes the port's faults, each by a second fault of the same
// kind. It returns true if there were none.
func (h *host) undoPortFaults() bool {
	straight := true
	for _, kind := range []string{"gid_change", "pkey_change"} {
		if n := h.daemon.status().Devices[0].Counters["fault_"+kind]; n%2 == 1 {
			straight = false
			_ = h.daemon.post("/v1/fault", faultRequest{Kind: kind}) // refused while the device is away
		}
	}
	return straight
}

// rungs counts the rungs that were entered.
func (j *journal) rungs() map[string]int {
	out := map[string]int{}
	for _, e := range j.since(0) {
		if e.Kind == entered {
			out[e.Rung]++
		}
	}
	return out
}

// requireMemory compares the resident memory with the previous value.
func (h *host) requireMemory(before condition) {
	h.tb.Helper()
	now := h.memory("VmRSS")
	h.tb.Logf("host %d: resident memory %d -> %d KiB", h.number, before.memory, now)
	if now > before.memory+stormMemory {
		h.tb.Errorf("host %d: resident memory %d KiB, was %d KiB", h.number, now, before.memory)
	}
}

// squall is a kind of command with its weight, and the command that undoes it, if
// undo is not empty.
type squall struct {
	weight int
	path   string
	body   any
	undo   string // path
	with   any    // body
}

// nothing is the empty body of a request.
var nothing = map[string]string{}

// strikes are the kinds of fault that are triggered by frames.
var strikes = []string{
	"send_error_sqe", "send_flush_sqe", "send_error_err", "send_flush_err", "recv_error_err", "recv_flush_err",
	"cq_overrun", "cq_error", "swallowed_send", "completions_stop", "deaf_receive",
}

var squalls = []squall{
	{weight: 3, path: "/v1/fault", body: faultRequest{Kind: "reset_fails"}},
	{weight: 3, path: "/v1/fault", body: faultRequest{Kind: "create_qp_fails"}},
	{weight: 3, path: "/v1/fault", body: faultRequest{Kind: "verb_hangs"}},
	{weight: 3, path: "/v1/fault", body: faultRequest{Kind: "device_fatal"}},
	{weight: 2, path: "/v1/fault", body: faultRequest{Kind: "client_slow"}},
	{weight: 1, path: "/v1/fault", body: faultRequest{Kind: "client_dead"}},
	{weight: 3, path: "/v1/fault", body: faultRequest{Kind: "unplug"}, undo: "/v1/fault", with: faultRequest{Kind: "replug"}},
	{weight: 1, path: "/v1/fault", body: faultRequest{Kind: "replug_other"}, undo: "/v1/fault", with: faultRequest{Kind: "replug"}},
	{weight: 3, path: "/v1/fault", body: faultRequest{Kind: "port_down"}, undo: "/v1/fault", with: faultRequest{Kind: "port_up"}},
	{weight: 3, path: "/v1/fault", body: faultRequest{Kind: "gid_change"}, undo: "/v1/fault", with: faultRequest{Kind: "gid_change"}},
	{weight: 3, path: "/v1/fault", body: faultRequest{Kind: "pkey_change"}, undo: "/v1/fault", with: faultRequest{Kind: "pkey_change"}},
	{weight: 2, path: "/v1/suspend", body: nothing, undo: "/v1/resume", with: nothing},
	{weight: 3, path: "/v1/reset", body: map[string]string{"scope": "qp"}},
	{weight: 3, path: "/v1/reset", body: map[string]string{"scope": "cq"}},
	{weight: 3, path: "/v1/reset", body: map[string]string{"scope": "device"}},
	{weight: 20, path: "/v1/recover", body: nothing},
}

// newStorm draws the commands, adds those that undo them, and sorts all by time.
func newStorm(seed uint64, length time.Duration) (storm []command) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	var bag []squall
	for _, q := range squalls {
		bag = append(bag, slices.Repeat([]squall{q}, q.weight)...)
	}
	for range length / stormEvery {
		c := command{at: time.Duration(rnd.Int64N(int64(length))), host: rnd.IntN(2)}
		undo := c
		c.path, c.body = "/v1/fault", faultRequest{Kind: strikes[rnd.IntN(len(strikes))], After: rnd.IntN(100), Count: 1 + rnd.IntN(3)/2}
		if q := bag[rnd.IntN(len(bag))]; rnd.IntN(2) == 0 {
			c.path, c.body = q.path, q.body
			undo.path, undo.body = q.undo, q.with
		}
		storm = append(storm, c)
		if undo.at += time.Duration(rnd.Int64N(int64(lull))); undo.path != "" {
			storm = append(storm, undo)
		}
	}
	slices.SortStableFunc(storm, func(a, b command) int { return cmp.Compare(a.at, b.at) })
	return storm
}
