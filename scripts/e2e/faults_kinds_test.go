package e2e

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// Rungs, in ascending order of severity; noRung means none.
const (
	noRung      = ""
	resumeQP    = "resume_qp"
	resetQP     = "reset_qp"
	recreateQP  = "recreate_qp"
	rebuildCQ   = "rebuild_cq"
	resetDevice = "reset_device"
	waitDevice  = "wait_for_device"
	giveUp      = "give_up"
)

var rungs = []string{noRung, resumeQP, resetQP, recreateQP, rebuildCQ, resetDevice, waitDevice, giveUp}

// goals for the median outage after detection, by the rung reached.
var goals = map[string]time.Duration{
	resumeQP: 5 * time.Millisecond, resetQP: 5 * time.Millisecond, recreateQP: 10 * time.Millisecond,
	rebuildCQ: 10 * time.Millisecond, resetDevice: 100 * time.Millisecond,
}

// fault is a kind of fault and its expected outcome.
type fault struct {
	name   string // with the number of the requirement that it shows
	inject func(*testing.T, *pair)
	// mend, if set, ends a lasting fault, at the time hold after its injection.
	mend func(*testing.T, *pair)
	hold time.Duration
	rung string // the highest expected rung
	or   string // another rung that may be reached; "" if none
	// partly: some traffic passes all the time, so the probe sees only part of
	// the outage that the daemon counts.
	partly bool
	// waits: the outage includes a wait to which the goals do not apply: a
	// grace period, or a verb's time limit.
	waits bool
	// perDaemon is how often the fault is injected before a new daemon is
	// started, because more repetitions would escalate. 0 means no limit.
	perDaemon int
}

// lasting is how long a fault lasts that must be mended.
const lasting = 300 * time.Millisecond

var faultKinds = []fault{
	{name: "R02/send_error_sqe", inject: strike("send_error_sqe"), rung: resumeQP, perDaemon: 5},
	{name: "R04/send_flush_sqe", inject: strike("send_flush_sqe"), rung: resumeQP, perDaemon: 5},
	{name: "R02/send_error_err", inject: strike("send_error_err"), rung: resetQP, perDaemon: 3},
	{name: "R04/send_flush_err", inject: strike("send_flush_err"), rung: resetQP, perDaemon: 3},
	{name: "R02/recv_error_err", inject: strike("recv_error_err"), rung: resetQP, perDaemon: 3},
	{name: "R04/recv_flush_err", inject: strike("recv_flush_err"), rung: resetQP, perDaemon: 3},
	{name: "R02/recv_bad_key", inject: strike("recv_bad_key"), rung: resetQP, perDaemon: 3}, // once its turn in the queue comes
	{name: "R06/reset_fails", inject: strike("reset_fails", "send_error_err"), rung: recreateQP, perDaemon: 3},
	{name: "R06/create_qp_fails", inject: strike("reset_fails", "create_qp_fails", "send_error_err"), rung: rebuildCQ, perDaemon: 3},
	{name: "R01/cq_overrun", inject: strike("cq_overrun"), rung: rebuildCQ, perDaemon: 3},
	{name: "R01/cq_error", inject: strike("cq_error"), rung: rebuildCQ, perDaemon: 3},
	{name: "R01/cq_small", inject: smallCQ, rung: rebuildCQ, perDaemon: 1},
	// A send queue completes in order, so the next completion also acknowledges this
	// send.
	{name: "R08/swallowed_send", inject: strike("swallowed_send")},
	{name: "R08/completions_stop", inject: strike("completions_stop"), rung: rebuildCQ, partly: true, perDaemon: 1},
	{name: "R08/deaf_receive", inject: strike("deaf_receive"), rung: rebuildCQ, perDaemon: 1},
	{name: "R08/completions stop on every CQ", inject: deadDataPath("completions_stop", 5), rung: resetDevice, partly: true, waits: true, perDaemon: 1},
	{name: "R08/receives are deaf on every QP", inject: deadDataPath("deaf_receive", 3), rung: resetDevice, partly: true, waits: true, perDaemon: 1},
	{name: "R08/query_port hangs, no interface asks", inject: hangingDevice, rung: resetDevice, waits: true, perDaemon: 3},
	{name: "R08/verb_hangs in a reset", inject: hang("modify_qp", "send_error_err"), rung: resetDevice, waits: true, perDaemon: 3},
	{name: "R08/verb_hangs in a rebuild", inject: hang("create_cq", "cq_error"), rung: resetDevice, waits: true, perDaemon: 3},
	{name: "R19/verb_hangs for good in two instances", inject: hangInInstances, rung: resetDevice, waits: true, perDaemon: 1},
	{name: "R25/device_fatal", inject: strike("device_fatal"), rung: resetDevice, perDaemon: 3},
	{name: "R14/client_slow", inject: strike("client_slow", "device_fatal"), rung: resetDevice, waits: true, perDaemon: 3},
	{name: "R14/client_dead", inject: strike("client_dead", "device_fatal"), rung: resetDevice, waits: true, perDaemon: 1},
	{name: "R21/unplug and replug", inject: strike("unplug"), mend: strike("replug"), hold: lasting, rung: waitDevice, perDaemon: 3},
	{name: "R22/another device, then the right one", inject: plugOther, mend: strike("replug"), rung: waitDevice, perDaemon: 3},
	{name: "R23/give up, then recover", inject: giveUpWaiting, mend: post("/v1/recover"), rung: giveUp, perDaemon: 1},
	{name: "R25/port down and up", inject: strike("port_down"), mend: strike("port_up"), hold: lasting},
	{name: "R25/port down and up, twice within a second", inject: flap, mend: strike("port_up"), hold: lasting},
	{name: "R25/GID goes and comes back", inject: strike("gid_change"), mend: strike("gid_change"), hold: lasting},
	{name: "R25/P_Key goes and comes back", inject: strike("pkey_change"), mend: strike("pkey_change"), hold: lasting},
	{name: "R25/operator resets the QP", inject: resetScope("qp"), rung: resetQP},
	{name: "R25/operator rebuilds the CQ", inject: resetScope("cq"), rung: rebuildCQ},
	{name: "R25/operator resets the device", inject: resetScope("device"), rung: resetDevice},
	// The reset itself removes the old instance.
	{name: "R21/a reset changes the index", inject: strike("reset_changes_index", "device_fatal"), rung: resetDevice, or: waitDevice, perDaemon: 3},
	{name: "R05/no descriptors left in a reset", inject: exhaust, mend: relieve, hold: lasting, rung: waitDevice, perDaemon: 1},
	{name: "R26/suspend and resume", inject: post("/v1/suspend"), mend: post("/v1/resume"), hold: lasting, rung: resetDevice, waits: true},

	{name: "R07/underlay takes nothing", inject: fillUnderlay, mend: emptyUnderlay, hold: blocking, or: resumeQP},
	{name: "R25/ip link down, up", inject: underlay("set", "down"), mend: linkUp, hold: lasting},
	{name: "R25/ip addr removed, given back", inject: flush, mend: readdress, hold: lasting},
	{name: "R25/ip link mtu cut, restored", inject: underlay("set", "mtu", "1400"), mend: underlay("set", "mtu", "1500"), hold: lasting, or: resumeQP}, // for a frame posted just before the cut
	{name: "R24/netdev deleted, made again", inject: pullOut, mend: putBack, hold: lasting, rung: waitDevice, perDaemon: 3},
	// The netdev that is back before the reset has ended belongs to the reset (R21).
	{name: "R21/fatal, then the netdev deleted, made again", inject: fatalThenPullOut, mend: putBack, hold: lasting, rung: waitDevice, or: resetDevice, waits: true, perDaemon: 3},
	{name: "R22/netdev of another MAC, then the right one", inject: putOther, mend: putBack, rung: waitDevice, perDaemon: 3},
}

// strike injects faults; all but the last affect the recovery from the last.
func strike(kinds ...string) func(*testing.T, *pair) {
	return func(_ *testing.T, p *pair) {
		for _, k := range kinds {
			p.faulty.daemon.inject(faultRequest{Kind: k})
		}
	}
}

// smallCQ makes the daemon rebuild its CQs, one of them too small, and waits
// until that one has overrun.
func smallCQ(t *testing.T, p *pair) {
	n := p.journal.len()
	strike("cq_small")(t, p)
	resetScope("cq")(t, p)
	p.journal.wait(t, n, recoveryLimit, "overrun", func(e event) bool { return e.ends() && e.Reason == "cq_error" })
}

// deadDataPath makes queue pairs or CQs stop working while verbs still return. The count
// covers those in use, those created by the rebuild and those of the proof. deadDataPath
// waits until the device has been reset.
func deadDataPath(kind string, count int) func(*testing.T, *pair) {
	return func(t *testing.T, p *pair) {
		n := p.journal.len()
		p.faulty.daemon.inject(faultRequest{Kind: kind, Count: count})
		p.journal.wait(t, n, recoveryLimit, "a reset for a proven freeze", func(e event) bool {
			return e.Scope == ifName && e.Rung == resetDevice && e.Kind == entered && e.Reason == "freeze_persists"
		})
		p.journal.wait(t, n, recoveryLimit, "its end", func(e event) bool { return e.Scope == ifName && e.ends() && e.Rung == resetDevice })
	}
}

// hangingDevice makes the verbs hang that check the device as a whole. Interfaces do not
// call them.
func hangingDevice(_ *testing.T, p *pair) {
	p.faulty.daemon.inject(faultRequest{Kind: "verb_hangs", Verb: "query_port"}, faultRequest{Kind: "verb_hangs", Verb: "alloc_pd"})
}

// blocking is how long the underlay accepts no packets: longer than the freeze detector
// needs to suspect a freeze.
const blocking = 1200 * time.Millisecond

// fillUnderlay makes the netdev of the faulty host hold packets: it sends one byte per
// second, and its queue is longer than the buffer of any socket.
func fillUnderlay(_ *testing.T, p *pair) {
	p.faulty.Run("tc", "qdisc", "replace", "dev", nstest.Dev, "root", "tbf", "rate", "8", "burst", "2000", "limit", "1000000000")
}

func emptyUnderlay(_ *testing.T, p *pair) {
	p.faulty.Run("tc", "qdisc", "del", "dev", nstest.Dev, "root")
}

// flap takes the port down a second time, long before the next regular carrier
// check. Checks are one second apart.
func flap(t *testing.T, p *pair) {
	strike("port_down")(t, p)
	time.Sleep(lasting)
	strike("port_up")(t, p)
	time.Sleep(lasting)
	strike("port_down")(t, p)
}

// hang makes a verb hang that recovery from a fault needs.
func hang(verb, kind string) func(*testing.T, *pair) {
	return func(_ *testing.T, p *pair) {
		p.faulty.daemon.inject(faultRequest{Kind: "verb_hangs", Verb: verb}, faultRequest{Kind: kind})
	}
}

// hangInInstances makes a verb hang forever in this instance and in the next one.
func hangInInstances(_ *testing.T, p *pair) {
	p.faulty.daemon.inject(faultRequest{Kind: "verb_hangs_forever", Verb: "create_cq", Count: 2}, faultRequest{Kind: "cq_error"})
}

// fatalThenPullOut removes the netdev during a reset of the device, which a slow client
// makes long enough.
func fatalThenPullOut(t *testing.T, p *pair) {
	strike("client_slow", "device_fatal")(t, p)
	p.faulty.unplug()
}

// exhaust resets the device while the daemon cannot open any descriptor. The request uses a
// connection that the daemon has accepted before.
func exhaust(t *testing.T, p *pair) {
	d := p.faulty.daemon
	conn, err := net.Dial("unix", d.control)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	d.status() // over a later connection, so the daemon has accepted this one; a request would end it, because the server closes connections after each
	d.limitDescriptors(t, func(l *unix.Rlimit) { l.Cur = 0 })
	const body = `{"scope":"device"}`
	fmt.Fprintf(conn, "POST /v1/reset HTTP/1.1\r\nHost: ipoibd\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if answer, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(answer, " 200 ") {
		t.Fatalf("request a reset: answer %q, error %v", answer, err)
	}
}

// relieve lifts the limit. The daemon, whose openings have failed, tries again by itself.
func relieve(t *testing.T, p *pair) {
	p.faulty.daemon.limitDescriptors(t, func(l *unix.Rlimit) { l.Cur = l.Max })
}

func (d *daemon) limitDescriptors(t *testing.T, change func(*unix.Rlimit)) {
	t.Helper()
	var l unix.Rlimit
	err := unix.Prlimit(d.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &l)
	if err == nil {
		change(&l)
		err = unix.Prlimit(d.cmd.Process.Pid, unix.RLIMIT_NOFILE, &l, nil)
	}
	if err != nil {
		t.Fatalf("limit the daemon's descriptors: %v", err)
	}
}

func post(path string) func(*testing.T, *pair) {
	return func(_ *testing.T, p *pair) { p.faulty.daemon.requirePost(path, map[string]string{}) }
}

func resetScope(scope string) func(*testing.T, *pair) {
	return func(_ *testing.T, p *pair) {
		p.faulty.daemon.requirePost("/v1/reset", map[string]string{"scope": scope})
	}
}

// plugOther unplugs the device and plugs in another one.
func plugOther(t *testing.T, p *pair) {
	strike("unplug", "replug_other")(t, p)
	p.requireLeftAlone(t)
}

// requireLeftAlone checks for a while that the daemon does not use a device that
// it must not use.
func (p *pair) requireLeftAlone(t *testing.T) {
	t.Helper()
	time.Sleep(lasting)
	if s := p.faulty.iface(); s.QP != nil {
		t.Errorf("the daemon uses the device, want it ignored:\n%s", p.faulty.describe())
	}
}

// giveUpWaiting unplugs the device until the daemon gives up waiting for it, then
// plugs it in again, which the daemon ignores.
func giveUpWaiting(t *testing.T, p *pair) {
	n := p.journal.len()
	strike("unplug")(t, p)
	p.journal.wait(t, n, repairLimit, "give up", func(e event) bool { return e.Rung == giveUp && e.Scope == ifName })
	strike("replug")(t, p)
	p.requireLeftAlone(t)
}

// underlay runs an ip link command on the netdev.
func underlay(verb string, args ...string) func(*testing.T, *pair) {
	return func(_ *testing.T, p *pair) {
		p.faulty.Run("ip", append([]string{"link", verb, nstest.Dev}, args...)...)
	}
}

func linkUp(_ *testing.T, p *pair) {
	p.faulty.Run("ip", "link", "set", nstest.Dev, "up")
	p.faulty.addUnderlay() // down removed the IPv6 address
}

func flush(_ *testing.T, p *pair)     { p.faulty.Run("ip", "addr", "flush", "dev", nstest.Dev) }
func readdress(_ *testing.T, p *pair) { p.faulty.addUnderlay() }
func pullOut(_ *testing.T, p *pair)   { p.faulty.unplug() }

// putOther replaces the right netdev by one with another MAC.
func putOther(t *testing.T, p *pair) {
	p.faulty.unplug()
	p.plug(p.faulty, macOf(0x77))
	p.requireLeftAlone(t)
}

// putBack restores the right netdev, and removes another one if there is one.
func putBack(_ *testing.T, p *pair) {
	_ = p.faulty.Command("ip", "link", "del", nstest.Dev).Run() // there may be none
	p.plug(p.faulty, macOf(p.faulty.number))
}
