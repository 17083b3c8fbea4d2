package e2e

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// trouble is a state of the device in which a hand-over begins.
type trouble struct {
	name   string
	faults []faultRequest
	orders []string        // then, commands
	wait   []time.Duration // before the hand-over: one of them
	undo   []faultRequest
	after  []string // commands that undo the orders
}

var troubles = []trouble{
	{name: "none"},
	{name: "device fails", faults: []faultRequest{{Kind: "device_fatal"}}},
	{name: "CQ fails", faults: []faultRequest{{Kind: "cq_error"}}},
	{name: "requests fail", faults: []faultRequest{{Kind: "send_error_err"}}},
	{name: "completions stop", faults: []faultRequest{{Kind: "completions_stop"}}},
	{name: "verb hangs", faults: []faultRequest{{Kind: "verb_hangs", Verb: "modify_qp"}}, orders: []string{"reset qp"}},
	{name: "slow client", faults: []faultRequest{{Kind: "client_slow"}, {Kind: "device_fatal"}}},
	{name: "device reset", orders: []string{"reset device"}},
	{name: "unplugged", faults: []faultRequest{{Kind: "unplug"}}, undo: []faultRequest{{Kind: "replug"}}, wait: []time.Duration{0, 600 * time.Millisecond, time.Second}},
	{name: "given up", faults: []faultRequest{{Kind: "unplug"}}, undo: []faultRequest{{Kind: "replug"}}, wait: []time.Duration{3500 * time.Millisecond}, after: []string{"recover"}},
	{name: "suspended", orders: []string{"suspend"}, after: []string{"resume"}, wait: []time.Duration{0, 600 * time.Millisecond}},
}

// A daemon is handed over while its device fails, waits, or is suspended or given up. Afterwards exactly one
// process runs, and has the queues of ib0; once the trouble is over, the interface works again without
// another order. Then the same happens while one of the two processes is killed or told to end at a random
// moment.
func TestHandOverStorm(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	a.startConfigured()
	a.Run("ip", "link", "set", ifName, "up")
	a.addAddrs(ifName)
	b.join()
	b.waitReaches(a)
	for _, kills := range []bool{false, true} {
		outcomes := map[string]int{}
		rounds, end := 0, time.Now().Add(form(10*time.Second, 5*time.Minute))
		for ; rounds < len(troubles) || time.Now().Before(end); rounds++ {
			x := troubles[rnd.IntN(len(troubles))]
			if rounds < len(troubles) {
				x = troubles[rounds] // each of them once
			}
			outcome := a.handOverIn(x, rnd, kills)
			outcomes[outcome]++
			t.Logf("round %d, %s, %s: host 1 reaches host 0 after %v", rounds, x.name, outcome, b.waitReaches(a))
		}
		t.Logf("%d hand-overs, with kills: %v: %v", rounds, kills, outcomes)
		if outcomes["taken over"] < rounds/3 {
			t.Errorf("only %d of %d hand-overs have succeeded", outcomes["taken over"], rounds)
		}
	}
}

// handOverIn hands over in trouble, which it ends. It returns what has become of the hand-over.
func (h *host) handOverIn(x trouble, rnd *rand.Rand, kills bool) (outcome string) {
	h.tb.Helper()
	old := h.daemon
	old.inject(x.faults...)
	order := func(all []string) {
		for _, o := range all {
			_ = h.daemon.command(strings.Fields(o)...).Run() // it may be needless by now
		}
	}
	order(x.orders)
	waits := append([]time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond}, x.wait...)
	if len(x.wait) > 0 {
		waits = x.wait
	}
	time.Sleep(waits[rnd.IntN(len(waits))])
	next := h.launchHeir()
	switch chance := rnd.IntN(20); {
	case !kills:
	case chance < 3:
		hurt(rnd, next, syscall.SIGKILL)
	case chance < 6:
		hurt(rnd, old, syscall.SIGKILL)
	case chance < 7:
		hurt(rnd, next, syscall.SIGTERM)
	case chance < 8:
		hurt(rnd, old, syscall.SIGTERM)
	}
	eventually(h.tb, startLimit, "one of two processes has ended", func() bool { return old.gone() || next.gone() })
	time.Sleep(prompt) // the other one may be ending too
	switch {
	case old.gone() && next.gone():
		outcome = "both have ended"
		old.ended, next.ended = true, true
		h.startConfigured()
	case old.gone():
		outcome = "taken over"
		old.ended = true
		h.daemon = next
	default:
		outcome = "not taken over"
		next.ended = true
		old.waitGives(0)
	}
	eventually(h.tb, startLimit, "the daemon answers", func() bool { return h.daemon.command("status").Run() == nil })
	if pid := h.daemon.status().PID; pid != h.daemon.cmd.Process.Pid {
		h.tb.Errorf("process %d serves the control socket, want %d", pid, h.daemon.cmd.Process.Pid)
	}
	for _, d := range []*daemon{old, next} {
		if n := d.queues(); d == h.daemon && n == 0 || d != h.daemon && n > 0 {
			h.tb.Errorf("%s, %s: process %d, which is the daemon: %v, has %d queues of %s", x.name, outcome, d.cmd.Process.Pid, d == h.daemon, n, ifName)
		}
	}
	for _, f := range x.undo {
		_ = h.daemon.post("/v1/fault", f) // a process that has started afresh has no faults
	}
	order(x.after)
	return outcome
}

// hurt signals a process at a random moment of a hand-over.
func hurt(rnd *rand.Rand, d *daemon, s syscall.Signal) {
	time.Sleep(time.Duration(rnd.Int64N(int64(120 * time.Millisecond))))
	d.ended = true
	_ = d.cmd.Process.Signal(s)
}

// queues returns how many queues of ib0 the process has open.
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

// A hand-over that is refused, because one interface recovers for a long time, does not stop the others.
func TestRefusedHandOverStopsNothing(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	c := &host{Namespace: nstest.New(t), tb: t, number: 2, dir: shortDir(t)}
	a.addSecondDevice(c)
	other := *a // a, as seen by c
	other.number = 3
	b.join()
	c.join()
	a.joinTwice(&other, c)
	b.waitReaches(a)
	c.waitReaches(&other)
	p := b.probe(a)
	p.waitAnswered(t, recoveryLimit)
	a.daemon.inject(faultRequest{Kind: "client_dead", Device: "soft1"}, faultRequest{Kind: "device_fatal", Device: "soft1"})
	for range 2 { // without a pause, because nothing has stopped
		began := time.Now()
		next := a.launchHeir()
		<-next.exited
		next.ended = true
		if text := next.log.String(); next.err == nil || !strings.Contains(text, "not now: ") || !strings.Contains(text, "stop the running daemon") {
			t.Errorf("%v\n%s", next.err, text)
		}
		p.waitAnswered(t, recoveryLimit)
		if s := p.silence(began); s > apartLimit {
			t.Errorf("the other interface was silent for %v", s)
		}
	}
}

// Broadcasts arrive also while the daemon is handed over: one of the two processes is always a member of
// the IP group that carries them.
func TestHandOverLosesNoBroadcast(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const rate, port = 2000, 9999
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	for _, h := range hosts {
		h.join()
	}
	pingAll(a, b)
	var in, out *net.UDPConn
	var inErr, outErr error
	a.Do(func() { in, inErr = net.ListenUDP("udp4", &net.UDPAddr{Port: port}) })
	b.Do(func() { out, outErr = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(10, 44, 0, 255), Port: port}) })
	if err := errors.Join(inErr, outErr); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	_ = in.SetReadBuffer(8 << 20)
	done, sent := make(chan struct{}), make(chan uint64)
	go func() {
		defer out.Close()
		tick := time.NewTicker(time.Second / rate)
		defer tick.Stop()
		for n := uint64(0); ; n++ {
			select {
			case <-done:
				sent <- n
				return
			case <-tick.C:
			}
			if _, err := out.Write(binary.BigEndian.AppendUint64(nil, n)); err != nil {
				t.Error(err)
			}
		}
	}()
	got := make(chan uint64, 1)
	go func() {
		seen := map[uint64]bool{}
		for msg := make([]byte, 8); ; {
			if _, err := in.Read(msg); err != nil {
				got <- uint64(len(seen))
				return
			}
			seen[binary.BigEndian.Uint64(msg)] = true
		}
	}()
	before := a.book()
	for range form(20, 100) {
		a.handOver()
		time.Sleep(20 * time.Millisecond)
	}
	close(done)
	n := <-sent
	time.Sleep(prompt)
	_ = in.SetReadDeadline(time.Now())
	received := <-got
	t.Logf("%d of %d broadcasts received; %v", received, n, a.book().since(before).drops())
	if received != n {
		t.Errorf("%d of %d broadcasts were lost", n-received, n)
	}
}
