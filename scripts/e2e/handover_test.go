package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// Goals of a hand-over under load, and the limits of make test, which are ten times as wide.
const (
	medianGoal = 50 * time.Millisecond
	worstGoal  = 300 * time.Millisecond
)

// launchHeir starts a daemon that takes over from h's, with the same arguments. It does not wait for
// anything.
func (h *host) launchHeir() *daemon {
	h.tb.Helper()
	d := h.daemon
	args := slices.Clone(d.cmd.Args[slices.Index(d.cmd.Args, "run"):])
	if !slices.Contains(args, "--take-over") {
		args = append(args, "--take-over")
	}
	program := os.Getenv(daemonEnv)
	if h.other != "" && d.cmd.Path == program {
		program = h.other
	}
	cmd := d.ns.Command(program, args...)
	next := &daemon{tb: h.tb, ns: d.ns, control: d.control, log: &logBuffer{}, exited: make(chan struct{}), cmd: cmd}
	cmd.Stdout, cmd.Stderr = next.log, next.log
	if err := cmd.Start(); err != nil {
		h.tb.Fatalf("start the daemon: %v", err)
	}
	go func() {
		next.err = cmd.Wait()
		close(next.exited)
	}()
	h.tb.Cleanup(next.cleanUp)
	return next
}

// handOver replaces the daemon by another process, and waits until that serves the control socket. It
// fails the test unless the former one ends without an error.
func (h *host) handOver() {
	h.tb.Helper()
	next := h.launchHeir()
	old := h.daemon
	old.ended = true
	select {
	case <-old.exited:
	case <-next.exited:
		h.tb.Fatalf("the new daemon ended: %v\n%s\nthe old one:\n%s", next.err, next.log, old.log)
	case <-time.After(startLimit):
		h.tb.Fatalf("the old daemon still runs\n%s\nthe new one:\n%s", old.log, next.log)
	}
	if old.err != nil {
		h.tb.Errorf("the old daemon failed: %v\n%s", old.err, old.log)
	}
	old.ended = false // if the test fails, its log is shown
	h.daemon = next
	if pid := next.status().PID; pid != next.cmd.Process.Pid {
		h.tb.Fatalf("process %d serves the control socket, want %d\n%s", pid, next.cmd.Process.Pid, next.log)
	}
}

// decreased returns the counters of the interface and the device that are below their earlier values.
// Gauges may be.
func (k book) decreased(earlier book) (names []string) {
	gauges := []string{"tx_outstanding", "tx_queued", "rx_outstanding", "neigh_kept"}
	for name, n := range earlier.values {
		if k.values[name] < n && !slices.Contains(gauges, name) {
			names = append(names, fmt.Sprintf("%s from %d to %d", name, n, k.values[name]))
		}
	}
	return names
}

// A TCP connection survives hand-overs at either end; each frame is accounted for, and counters do not
// decrease. The queue pair keeps its number and the interface its carrier, so that peers need not
// notice anything.
func TestHandOver(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, lanes := range form([][2]string{{"1", "4"}}, [][2]string{{"1", "1"}, {"4", "4"}, {"1", "4"}}) {
		for _, args := range form([][]string{{"--fast-path"}}, [][]string{nil, {"--fast-path"}}) {
			t.Run(fmt.Sprintf("%s_and_%s%s", lanes[0], lanes[1], strings.Join(args, "")), func(t *testing.T) {
				handOverRepeatedly(t, newHosts(t, 2), form(10, 50), lanes, args...)
			})
		}
	}
}

// handOverRepeatedly hands over at two hosts in turn, with a number of lanes at each and further arguments.
func handOverRepeatedly(t *testing.T, hosts []*host, times int, lanes [2]string, args ...string) {
	a, b := hosts[0], hosts[1]
	for i, h := range hosts {
		h.Run("sysctl", "-q", "-w", "net.ipv6.conf.default.router_solicitations=0")
		h.join(append(args, "--lanes", lanes[i])...)
	}
	pingAll(a, b)
	before := rest(t, a, b)
	qpns := [2]any{a.qp().QPN, b.qp().QPN}
	changes := [2]int{a.carrierChanges(), b.carrierChanges()}
	var outages []time.Duration
	t.Run("under_load", func(t *testing.T) {
		from, to := a.in(t), b.in(t)
		s := from.stream(to)
		p := from.probe(to)
		for n := range times {
			h := hosts[n%2]
			p.waitAnswered(t, recoveryLimit)
			earlier, began := h.book(), time.Now()
			old := h.daemon
			h.handOver()
			took := time.Since(began)
			p.waitAnswered(t, recoveryLimit)
			outages = append(outages, p.silence(began))
			if outages[n] > worstGoal {
				t.Logf("an outage of %v from %v on; the old process:\n%s\nthe new one:\n%s", outages[n], began.UTC(), old.log, h.daemon.log)
			}
			if names := h.book().decreased(earlier); len(names) > 0 {
				t.Errorf("after hand-over %d of host %d, counters have decreased: %v", n, h.number, names)
			}
			if _, err := s.waitMoves(streamLimit); err != nil {
				t.Fatalf("after hand-over %d of host %d: %v\n%s", n, h.number, err, h.daemon.log)
			}
			t.Logf("hand-over %2d, host %d: outage %v, the new process ruled after %v", n, h.number, outages[n], took)
		}
	})
	for i, h := range hosts {
		if qpn := h.qp().QPN; qpn != qpns[i] {
			t.Errorf("host %d: the queue pair has the number %v now, was %v", i, qpn, qpns[i])
		}
		if n := h.carrierChanges(); n != changes[i] {
			t.Errorf("host %d: the carrier has changed %d times", i, n-changes[i])
		}
	}
	requireNoStale(t, hosts)
	after := rest(t, a, b)
	ka, kb := after[0].since(before[0]), after[1].since(before[1])
	a.checkDaemon(ka)
	b.checkDaemon(kb)
	a.equal("sent to the wire = received there", ka.sent(), kb.received())
	b.equal("sent to the wire = received there", kb.sent(), ka.received())
	t.Logf("lost, and counted, by host 0: %v; by host 1: %v", ka.drops(), kb.drops())

	slices.Sort(outages)
	median, worst := outages[len(outages)/2], outages[len(outages)-1]
	t.Logf("%d hand-overs: median outage %v (goal %v), worst %v (goal %v)", len(outages), median, medianGoal, worst, worstGoal)
	wide := time.Duration(form(10, 1))
	if median > wide*medianGoal || worst > wide*worstGoal {
		t.Errorf("median outage %v, want at most %v; worst %v, want at most %v", median, wide*medianGoal, worst, wide*worstGoal)
	}
}

// takerSteps are the steps after which a taker ends, without the last one, which makes it the owner.
var takerSteps = []string{"connected", "upgraded", "asked", "offered", "silent"}

// endTaker is a taker that ends after a step.
func endTaker(t *testing.T, control, after string) {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: control, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(startLimit)); err != nil {
		t.Fatal(err)
	}
	steps := map[string]func() error{
		"upgraded": func() error { return upgradeTaker(conn) },
		"asked": func() error {
			const ask = `{"type":"ask","version":2}`
			_, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(ask))), ask...))
			return err
		},
		"offered": func() error { // not the descriptors
			var size [4]byte
			if _, err := io.ReadFull(conn, size[:]); err != nil {
				return err
			}
			body := make([]byte, binary.BigEndian.Uint32(size[:]))
			if _, err := io.ReadFull(conn, body); err != nil || !bytes.Contains(body, []byte(`"offer"`)) {
				return fmt.Errorf("no offer: %w: %.80s", err, body)
			}
			return nil
		},
		"silent": func() error { // until the daemon withdraws its offer
			rest, err := io.ReadAll(conn)
			if err != nil || !bytes.Contains(rest, []byte(`"withdrawn"`)) {
				return fmt.Errorf("not withdrawn: %w: %q", err, rest)
			}
			return nil
		},
	}
	for _, step := range takerSteps[1 : slices.Index(takerSteps, after)+1] {
		if err := steps[step](); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
	}
}

// givePause is how long a daemon refuses hand-overs after one that has failed although traffic had stopped.
const givePause = 10 * time.Second

// failedGives returns how many hand-overs have failed for which the daemon may have stopped traffic.
func (d *daemon) failedGives() int {
	return strings.Count(d.log.String(), "hand-over failed; still running")
}

// waitGives waits until the daemon may hand over again, if more than failed hand-overs have failed. It
// returns how many now.
func (d *daemon) waitGives(failed int) int {
	now := d.failedGives()
	if now > failed {
		time.Sleep(givePause)
	}
	return now
}

// upgradeTaker asks for the protocol of a hand-over.
func upgradeTaker(conn *net.UnixConn) error {
	if _, err := conn.Write(request("POST", "/v1/hand-over", "Connection: Upgrade\r\nUpgrade: ipoibd-hand-over\r\nContent-Length: 0\r\n")); err != nil {
		return err
	}
	answer := make([]byte, 1024)
	n, err := conn.Read(answer)
	if err != nil || !bytes.HasPrefix(answer[:n], []byte("HTTP/1.1 101 ")) {
		return fmt.Errorf("%w: %s", err, answer[:n])
	}
	return nil
}

// If the new process ends at any step, the old one continues with the same queue pair, and no frame is
// lost. If it ends after the last step, the next start adopts ib0, as after any crash. If the old process
// is killed at any time, the new one takes over, or starts as usual. A second taker and another user are
// refused meanwhile.
func TestHandOverIsCut(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	for _, h := range hosts {
		h.Run("sysctl", "-q", "-w", "net.ipv6.conf.default.router_solicitations=0")
		h.join()
	}
	pingAll(a, b)
	qpn, changes := a.qp().QPN, a.carrierChanges()
	p := b.probe(a)
	failed := 0
	for _, step := range takerSteps {
		began := time.Now()
		endTaker(t, a.daemon.control, step)
		p.waitAnswered(t, recoveryLimit)
		t.Logf("the taker ended after %q: outage %v", step, p.silence(began))
		if now := a.qp().QPN; now != qpn || a.daemon.gone() {
			t.Fatalf("after %q, the queue pair has the number %v, was %v\n%s", step, now, qpn, a.daemon.log)
		}
		if step != "connected" && step != "upgraded" { // else nothing has stopped
			eventually(t, startLimit, "the daemon logs that", func() bool { return a.daemon.failedGives() > failed })
		}
		failed = a.daemon.waitGives(failed)
	}
	requireRefusals(t, a)
	if n := a.carrierChanges(); n != changes {
		t.Errorf("the carrier has changed %d times", n-changes)
	}
	p.pause(t)
	for i, k := range rest(t, a, b) {
		hosts[i].checkDaemon(k)
	}

	for n := range form(6, 60) { // the new process is killed, possibly when it owns everything already
		next := a.launchHeir()
		time.Sleep(rand.N(60 * time.Millisecond))
		_ = next.cmd.Process.Kill() // it may have been refused
		<-next.exited
		next.ended = true
		eventually(t, decideLimit, "the old process has decided", func() bool { // from before its offer until then, it answers nothing
			return a.daemon.gone() || a.daemon.command("status").Run() == nil
		})
		time.Sleep(10 * prompt) // if it continues, it logs why
		owned := a.daemon.gone()
		if owned {
			a.daemon.ended = true
			a.start()
			a.waitCarrier()
			failed = 0
		}
		failed = a.daemon.waitGives(failed)
		t.Logf("kill %d of the new process: it owned everything: %v; host 1 reaches host 0 after %v", n, owned, b.waitReaches(a))
	}
	for n := range form(6, 60) { // the old process is killed, possibly when it has ended already
		next := a.launchHeir()
		time.Sleep(rand.N(60 * time.Millisecond))
		old := a.daemon
		old.ended = true
		_ = old.cmd.Process.Kill()
		a.daemon = next
		eventually(t, startLimit, "the new daemon answers", func() bool {
			if next.gone() {
				t.Fatalf("the new daemon ended: %v\n%s", next.err, next.log)
			}
			return next.command("status").Run() == nil
		})
		a.waitCarrier()
		t.Logf("kill %d of the old process: taken over: %v; host 1 reaches host 0 after %v",
			n, strings.Contains(next.log.String(), "taken over"), b.waitReaches(a))
	}
}

// requireRefusals checks that there is one hand-over at a time, and none to another user.
func requireRefusals(t *testing.T, h *host) {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: h.daemon.control, Net: "unix"})
	if err == nil {
		err = upgradeTaker(conn)
	}
	if err != nil {
		t.Fatal(err)
	}
	second := h.launchHeir()
	<-second.exited
	if text := second.log.String(); second.err == nil || !strings.Contains(text, "another hand-over is under way") {
		t.Errorf("a second taker: %v\n%s", second.err, text)
	}
	conn.Close()

	chmod(t, h.dir, 0o755)
	chmod(t, h.daemon.control, 0o666)
	defer chmod(t, h.daemon.control, 0o600)
	foreign, err := dialAs(stranger, h.daemon.control)
	if errors.Is(err, syscall.EINVAL) {
		t.Log("this user namespace has no second user")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	if err := upgradeTaker(foreign); err == nil || !strings.Contains(err.Error(), "HTTP/1.1 403 ") {
		t.Errorf("a taker of another user: %v", err)
	}
}

// What is not a frame is handed over too: clients of the control socket and of the metrics are always
// served, interfaces that were added at run time stay, and the configuration of the new process is
// applied, now and by later reloads. The journal continues.
func TestHandOverOfTheRest(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	b.join()
	a.startWithFile(a.besides("pkeys: [0xffff, 0x8001]", ""), "--metrics-listen", a.metricsAddr())
	a.waitCarrier()
	const added = `{"name": "ib7", "pkey": "0x8001", "up": true}`
	resp, err := a.daemon.client().Post("http://ipoibd/v1/interfaces", "application/json", strings.NewReader(added))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("add an interface: %v, %+v", err, resp)
	}
	resp.Body.Close()
	b.waitReaches(a)
	eventually(t, carrierLimit, "ib7 is up", func() bool { return a.named("ib7").State == "up" })
	index, _, _ := strings.Cut(a.Run("ip", "-o", "link", "show", "ib7"), ":")

	asked, failed, stop := clients(a)
	for range form(3, 20) {
		a.handOver()
		b.waitReaches(a)
	}
	stop()
	t.Logf("%v requests of clients meanwhile", asked)
	if len(failed()) > 0 {
		t.Errorf("requests of clients: %v", failed())
	}
	now, _, _ := strings.Cut(a.Run("ip", "-o", "link", "show", "ib7"), ":")
	if f := a.named("ib7"); f == nil || f.State != "up" || now != index {
		t.Fatalf("ib7, which was added at run time, has the index %s, had %s: %+v", now, index, f)
	}
	if out, err := a.daemon.command("events").CombinedOutput(); err != nil || strings.Count(string(out), "taken over, now version") != form(3, 20) {
		t.Errorf("events: %v\n%s", err, out)
	}

	a.edit(a.besides("pkeys: [0xffff, 0x8001]", "    mtu: 1400\n"))
	a.handOver()
	eventually(t, repairLimit, "the new process applies its configuration", func() bool { return a.named(ifName).MTU == 1400 })
	a.edit(a.besides("pkeys: [0xffff, 0x8001]", "    mtu: 1300\n"))
	if done := a.reloads(); done != ifName+" changed mtu" {
		t.Errorf("a reload after hand-overs: %s", done)
	}
	eventually(t, repairLimit, "the reload has changed the MTU", func() bool { return a.named(ifName).MTU == 1300 })
	b.waitReaches(a)
	a.daemon.stop()
	if _, err := os.Stat(a.daemon.control); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the control socket after a stop: %v", err)
	}
	a.daemon.ended = false
	a.startWithFile(a.besides("", ""), "--take-over") // nothing to take over, and no P_Key for ib7
	b.waitReaches(a)
	a.handOver()
	a.daemon.stop()
	a.daemon.ended = false
	a.startWithFile(a.besides("pkeys: [0xffff, 0x8001]", ""), "--take-over")
	eventually(t, carrierLimit, "ib7 is up again", func() bool { f := a.named("ib7"); return f != nil && f.State == "up" })
	b.waitReaches(a)
}

// clients asks for the status and the metrics without end. It returns how often each was asked for.
func clients(h *host) (asked map[string]int, failed func() []string, stop func()) {
	var mu sync.Mutex
	var all sync.WaitGroup
	var wrong []string
	asked = map[string]int{}
	done := make(chan struct{})
	overTCP := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
		h.Do(func() { conn, err = net.Dial("tcp", h.metricsAddr()) })
		return conn, err
	}}}
	for url, client := range map[string]*http.Client{"http://ipoibd/v1/status": h.daemon.client(), "http://ipoibd/readyz": h.daemon.client(), "http://tcp/metrics": overTCP} {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(2 * time.Millisecond):
				}
				resp, err := client.Get(url)
				var body []byte
				if err == nil {
					body, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				}
				mu.Lock()
				asked[url]++
				if err != nil || resp.StatusCode != http.StatusOK {
					wrong = append(wrong, fmt.Sprintf("%s: %v: %.200s", url, err, body))
				}
				mu.Unlock()
			}
		})
	}
	return asked, func() []string { return wrong }, func() { close(done); all.Wait() }
}

// pause ends the requests of a probe, so that the accounts can rest.
func (p *probe) pause(tb testing.TB) {
	tb.Helper()
	p.silent.Store(true)
	time.Sleep(prompt)
}

// Interfaces that are lent to pods are handed over too, with their TCP connections. The new process
// removes that of a pod which ends, and one that is killed afterwards is followed by one that
// remembers the others.
func TestHandOverOfLentInterfaces(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nodes := newNodes(t, 2)
	a, b := nodes[0], nodes[1]
	stays, ends, far := a.newPod(0), a.newPod(1), b.newPod(0)
	for _, p := range []*pod{stays, ends, far} {
		p.add()
	}
	stays.waitReaches(far.host)
	stream := stays.stream(far.host)
	for range 3 {
		a.handOver()
		if took, err := stream.waitMoves(streamLimit); err != nil {
			t.Error(err)
		} else {
			t.Logf("the connection carries data %v after a hand-over", took)
		}
	}
	stays.must("check")
	ends.must("check")
	ends.end()
	eventually(t, repairLimit, "the new process deletes the interface of a pod that has ended", func() bool {
		return ends.Run("ip", "-o", "link", "show", "type", "tun") == ""
	})
	added := a.newPod(2)
	added.add()
	a.daemon.kill()
	a.startWithFile(serving)
	for _, p := range []*pod{stays, added} {
		p.waitReaches(far.host)
		p.must("check")
	}
	for _, p := range []*pod{stays, ends, added, far} {
		p.must("del")
	}
	a.requireClean(stays, added)
	b.requireClean(far)
}
