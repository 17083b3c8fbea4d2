package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// Limits of the storm of hand-overs.
const (
	// standLimit is how long a hand-over may stop traffic if one of the two processes hangs.
	standLimit = 3 * time.Second
	// decideLimit bounds a hand-over: a start, the wait for a recovery to end (2 s), and standLimit.
	decideLimit = startLimit + 2*time.Second + standLimit
	// givenUp is longer than faultyConfig lets the daemon wait for a device.
	givenUp = 3500 * time.Millisecond
	// stopMost is how long a new process is stopped at most: the longer form exceeds standLimit.
	stopMost, stopMostLong = 500 * time.Millisecond, 4500 * time.Millisecond
	// startSpread is how long after the start of the new process a blow comes at most. It owns everything
	// after some 20 ms, or later if the former one must complete a recovery.
	startSpread = 40 * time.Millisecond
	// offerSpread is the same for a blow that comes after the new process has received the queues, and may own
	// them a millisecond later.
	offerSpread = 4 * time.Millisecond
)

// trouble is a state of the device in which a hand-over begins.
type trouble struct {
	name   string
	faults []faultRequest
	orders []string        // then, commands of ipoibd
	waits  []time.Duration // one of them passes before the hand-over; nil: hitWaits
	undo   []faultRequest  // then the device must be retried by a command if the daemon has given it up
	after  []string        // commands that undo the orders
	rests  bool            // the device stays suspended until then
	slow   bool            // its recovery may take longer than a hand-over waits, which is refused then
}

var hitWaits = []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond}

var (
	noTrouble = trouble{name: "none"}
	// lightTroubles do not reset the device. Each of them once in a minute is within the allowances of the
	// interface's rungs.
	lightTroubles = []trouble{
		{name: "send error, SQE", faults: []faultRequest{{Kind: "send_error_sqe"}}},
		{name: "send flushed, SQE", faults: []faultRequest{{Kind: "send_flush_sqe"}}},
		{name: "send error", faults: []faultRequest{{Kind: "send_error_err"}}},
		{name: "receive error", faults: []faultRequest{{Kind: "recv_error_err"}}},
		{name: "CQ error", faults: []faultRequest{{Kind: "cq_error"}}},
		{name: "CQ overrun", faults: []faultRequest{{Kind: "cq_overrun"}}},
		{name: "send swallowed", faults: []faultRequest{{Kind: "swallowed_send"}}},
		{name: "QP reset", orders: []string{"reset qp"}},
		{name: "CQ rebuilt", orders: []string{"reset cq"}},
		{name: "suspended", orders: []string{"suspend"}, after: []string{"resume"}, rests: true, waits: []time.Duration{0, 600 * time.Millisecond}},
	}
	// heavyTroubles count as failures of the device, or may: three in ten minutes are within its allowance.
	heavyTroubles = []trouble{
		{name: "device fails", faults: []faultRequest{{Kind: "device_fatal"}}, slow: true},
		{name: "completions stop", faults: []faultRequest{{Kind: "completions_stop"}}, slow: true},
		{name: "verb hangs", faults: []faultRequest{{Kind: "verb_hangs", Verb: "modify_qp"}}, orders: []string{"reset qp"}, slow: true},
		{name: "slow client", faults: []faultRequest{{Kind: "client_slow"}, {Kind: "device_fatal"}}, slow: true},
		{name: "device reset", orders: []string{"reset device"}, slow: true},
		{name: "unplugged", faults: []faultRequest{{Kind: "unplug"}}, undo: []faultRequest{{Kind: "replug"}}, waits: []time.Duration{0, 600 * time.Millisecond, time.Second, givenUp}, slow: true},
	}
)

// blow is what happens to one of the two processes at a random moment of a hand-over.
type blow struct {
	name  string
	deal  func(rnd *rand.Rand, old, next *daemon)
	limit time.Duration // of the outage, without trouble
}

var (
	noBlow      = blow{"plain", func(*rand.Rand, *daemon, *daemon) {}, 10 * worstGoal}
	takerStops  = blow{"taker stopped", stopTaker, stopMostLong + standLimit + 10*worstGoal}
	giverKilled = blow{"giver killed", func(_ *rand.Rand, old, _ *daemon) { _ = old.cmd.Process.Kill() }, startLimit}
	takerKilled = blow{"taker killed", func(_ *rand.Rand, _, next *daemon) { _ = next.cmd.Process.Kill() }, startLimit}
)

func stopTaker(rnd *rand.Rand, _, next *daemon) {
	_ = next.cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(time.Duration(rnd.Int64N(int64(form(stopMost, stopMostLong)))))
	_ = next.cmd.Process.Signal(syscall.SIGCONT)
}

// What has become of a hand-over.
const (
	takenOver = "taken over"
	afresh    = "started afresh"
	keptOn    = "not taken over"
	bothEnded = "both have ended"
)

// stormyHost is a host whose daemon is handed over again and again, while another host pings it.
type stormyHost struct {
	*host
	probe    *probe // of the other host
	rnd      *rand.Rand
	rounds   int
	outcomes map[string]int             // by blow and outcome
	outages  map[string][]time.Duration // by blow, without trouble
	recovers map[string]time.Duration   // by trouble: the longest time until everything works again
}

// A daemon is handed over while its device or interface fails, waits, is suspended or given up, and while one of
// the two processes is killed or stopped at a random moment. After each round exactly one process runs,
// which has all queues of ib0; once the trouble is over, the interface works again without another order (unless the daemon had given up),
// and the other host is answered. In rounds without kills, each frame is accounted for (R10). A killed process
// may lose what it has counted.
func TestR10HandOverStorm(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	seed := cmp.Or(*stormSeed, rand.Uint64())
	t.Logf("-storm.seed=%d", seed)
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	for _, h := range hosts {
		h.Run("sysctl", "-q", "-w", "net.ipv6.conf.default.router_solicitations=0")
	}
	a.startConfigured()
	a.Run("ip", "link", "set", ifName, "up")
	a.addAddrs(ifName)
	b.join()
	b.waitReaches(a)
	s := &stormyHost{host: a, rnd: rand.New(rand.NewPCG(seed, 0)), outcomes: map[string]int{}, outages: map[string][]time.Duration{}, recovers: map[string]time.Duration{}}
	began := time.Now()
	for seasons := 0; seasons == 0 || time.Since(began) < form(0, 10*time.Minute); seasons++ {
		s.season(t, b)
	}
	t.Logf("%d hand-overs in %v: %v", s.rounds, time.Since(began).Round(time.Second), s.outcomes)
	for _, name := range slices.Sorted(maps.Keys(s.outages)) {
		t.Logf("%s, without trouble: outages (median/worst of %d) %s", name, len(s.outages[name]), figures(s.outages[name]))
	}
	t.Logf("the longest time until all worked again, by trouble: %v", s.recovers)
}

// season hands over without kills, checks the accounts, which cover all of these rounds, and then hands
// over with kills. Both parts begin with a new daemon, so that their troubles are within the allowances of the
// rungs: no pause follows.
func (s *stormyHost) season(t *testing.T, other *host) {
	t.Helper()
	before := make([]book, 2) // zeros: the first daemon has created the interface
	if s.probe == nil {
		s.probe = other.probe(s.host)
	} else {
		s.restart()
		s.probe.pause(t)
		before = rest(t, s.host, other)
	}
	s.probe.silent.Store(false)
	s.probe.waitAnswered(t, recoveryLimit)
	var early status // of the first process that has taken over
	for n, x := range s.drawn(form(3, 5), form(1, 2)) {
		if s.round(x, []blow{noBlow, noBlow, takerStops}[n%3], false); n == 0 {
			early = s.daemon.status()
		}
	}
	s.probe.pause(t)
	after := rest(t, s.host, other)
	s.checkInterface(after[0].since(before[0]))
	other.checkDaemon(after[1].since(before[1]))
	requireNoLeak(t, early, s.daemon)
	s.probe.silent.Store(false)
	s.restart()
	var blows []blow // still to come
	for _, x := range s.drawn(form(2, 5), form(0, 2)) {
		if len(blows) == 0 {
			blows = shuffled(s.rnd, []blow{giverKilled, takerKilled, takerStops, noBlow})
		}
		s.round(x, blows[0], true)
		blows = blows[1:]
	}
}

// restart starts another daemon, and waits until it works.
func (s *stormyHost) restart() {
	s.tb.Helper()
	s.daemon.stop()
	s.startConfigured()
	s.probe.waitAnswered(s.tb, recoveryLimit)
}

// drawn returns troubles in random order, each followed by none.
func (s *stormyHost) drawn(light, heavy int) (list []trouble) {
	mixed := append(shuffled(s.rnd, lightTroubles)[:light], shuffled(s.rnd, heavyTroubles)[:heavy]...)
	for _, x := range shuffled(s.rnd, mixed) {
		list = append(list, x, noTrouble)
	}
	return list
}

// shuffled returns a copy in random order.
func shuffled[T any](rnd *rand.Rand, list []T) []T {
	list = slices.Clone(list)
	rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// round hands over in trouble, which it then ends, and checks that one process owns everything, and that
// everything works. The first round that fails ends the test.
func (s *stormyHost) round(x trouble, b blow, kills bool) {
	s.tb.Helper()
	s.rounds++
	name := fmt.Sprintf("round %d, %s, %s", s.rounds, x.name, b.name)
	began, old := time.Now(), s.daemon
	failed := old.failedGives()
	old.inject(x.faults...)
	s.order(x.orders)
	waits := hitWaits
	if x.waits != nil {
		waits = x.waits
	}
	time.Sleep(waits[s.rnd.IntN(len(waits))])
	next := s.launchHeir()
	switch s.rnd.IntN(3) {
	case 0:
		time.Sleep(time.Duration(s.rnd.Int64N(int64(startSpread))))
	case 1:
		next.waitOffer()
	case 2:
		next.waitOffer()
		time.Sleep(time.Duration(s.rnd.Int64N(int64(offerSpread))))
	}
	b.deal(s.rnd, old, next)
	outcome := s.decided(name, old, next)
	defer func() {
		if s.tb.Failed() {
			s.tb.Logf("%s, %s, from %v on; the process that gives:\n%s\nthe one that takes:\n%s\n%s", name, outcome, began.UTC(), old.log, next.log, s.describe())
			old.ended, next.ended = true, true // their logs need not be shown again
		}
	}()
	if wrong := x.allows(b, outcome, old, next); wrong != "" {
		s.tb.Errorf("%s: %s: %s", name, outcome, wrong)
	}
	if outcome == bothEnded {
		s.startConfigured()
	}
	s.requireOneOwner(old, next)
	if x.rests && (outcome == takenOver || outcome == keptOn) {
		eventually(s.tb, repairLimit, "the device is still suspended", func() bool { return s.daemon.status().Devices[0].State == "suspended" })
	}
	ended := time.Now()
	for _, f := range x.undo {
		_ = s.daemon.post("/v1/fault", f) // refused by a process that has started afresh
	}
	if x.undo != nil && s.daemon.status().Devices[0].State == "given_up" {
		s.order([]string{"recover"})
	}
	s.order(x.after)
	eventually(s.tb, repairLimit, "the device is open, and "+ifName+" up", func() bool {
		now := s.daemon.status()
		return now.Devices[0].State == "open" && now.Interfaces[0].State == "up"
	})
	s.probe.waitAnswered(s.tb, repairLimit)
	s.recovers[x.name] = max(s.recovers[x.name], time.Since(ended).Round(time.Millisecond))
	outage := s.probe.silence(began)
	if s.outcomes[b.name+", "+outcome]++; x.name == noTrouble.name {
		if s.outages[b.name] = append(s.outages[b.name], outage); outage > b.limit {
			s.tb.Errorf("%s: the other host was not answered for %v, want at most %v", name, outage, b.limit)
		}
	}
	s.tb.Logf("%s: %s; outage %v; took %v", name, outcome, short(outage), short(time.Since(began)))
	if s.tb.Failed() {
		s.tb.FailNow()
	}
	old.ended, next.ended = old.gone(), next.gone()
	s.mayGiveAgain(failed, kills)
}

// waitOffer waits until a new process has received the queues, which it may not own yet, or has been refused.
// If neither happens, the test fails later.
func (d *daemon) waitOffer() {
	for start := time.Now(); d.queues() == 0 && !d.gone() && time.Since(start) < decideLimit; {
		time.Sleep(50 * time.Microsecond) // a part of the time for which it does not own them
	}
}

// order gives commands, which may be needless by now, and are refused then.
func (s *stormyHost) order(all []string) {
	for _, o := range all {
		_ = s.daemon.command(strings.Fields(o)...).Run()
	}
}

// decided waits until the hand-over has ended in one way or another: one process answers, and the other
// one has ended, or both. A former daemon that answers after the new one has ended keeps everything,
// because it answers nothing from before its offer until its decision.
func (s *stormyHost) decided(name string, old, next *daemon) (outcome string) {
	s.tb.Helper()
	defer func() {
		if outcome == "" {
			s.tb.Logf("%s; the process that gives:\n%s\nthe one that takes:\n%s", name, old.log, next.log)
		}
	}()
	eventually(s.tb, decideLimit, "the hand-over has ended", func() bool {
		return old.gone() && next.gone() || old.gone() != next.gone() && old.command("status").Run() == nil
	})
	switch {
	case old.gone() && next.gone():
		return bothEnded
	case old.gone():
		s.daemon = next
		if strings.Contains(old.log.String(), `msg="handed over"`) || strings.Contains(next.log.String(), `msg="taken over"`) {
			return takenOver
		}
		return afresh
	}
	return keptOn
}

// allows returns what is wrong with an outcome of a blow, or "".
func (x *trouble) allows(b blow, outcome string, old, next *daemon) string {
	refused := x.slow && strings.Contains(next.log.String(), "cannot be handed over now: ")
	switch {
	case b.name == takerKilled.name && (outcome == keptOn || outcome == bothEnded):
	case b.name == giverKilled.name && (outcome == takenOver || outcome == afresh || outcome == bothEnded && refused):
	case b.name == takerKilled.name, b.name == giverKilled.name, outcome == afresh, outcome == bothEnded:
		return fmt.Sprintf("not expected; the errors of the processes: %v; %v", old.err, next.err)
	case outcome == takenOver && old.err != nil:
		return fmt.Sprintf("the one that gives has failed: %v", old.err)
	case outcome == keptOn && next.err == nil:
		return "the one that takes has ended without an error"
	case outcome == keptOn && !refused && (b.name != takerStops.name || !strings.Contains(next.log.String(), "did not take over in time")):
		return "the hand-over has failed without a reason"
	}
	return ""
}

// requireOneOwner checks that only the daemon has queues of ib0, one for each lane, and serves the control socket.
func (s *stormyHost) requireOneOwner(others ...*daemon) {
	s.tb.Helper()
	now := s.daemon.status()
	if own := s.daemon.cmd.Process.Pid; now.PID != own {
		s.tb.Errorf("process %d serves the control socket, want %d", now.PID, own)
	}
	if n, lanes := s.daemon.queues(), now.Interfaces[0].Lanes; n != lanes {
		s.tb.Errorf("process %d has %d queues of %s, want %d", now.PID, n, ifName, lanes)
	}
	for _, d := range others {
		if n := d.queues(); d != s.daemon && (n > 0 || !d.gone()) {
			s.tb.Errorf("process %d has %d queues of %s, and has ended: %v", d.cmd.Process.Pid, n, ifName, d.gone())
		}
	}
}

// queues returns how many queues the process has that are attached to ib0 (proc_pid_fdinfo(5)).
func (d *daemon) queues() (n int) {
	files, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(d.cmd.Process.Pid), "fdinfo", "*"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(text), "iff:\t"+ifName+"\n") {
			n++
		}
	}
	return n
}

// mayGiveAgain waits until the daemon may be handed over again, if a hand-over has failed. Between rounds
// with kills, another daemon takes its place instead.
func (s *stormyHost) mayGiveAgain(failed int, kills bool) {
	s.tb.Helper()
	time.Sleep(10 * prompt) // the daemon logs what it has decided
	if kills && s.daemon.failedGives() > failed {
		s.restart()
		return
	}
	s.daemon.waitGives(failed)
}
