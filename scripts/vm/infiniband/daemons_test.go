package infiniband

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/scripts/sm"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/ibwire"
	"ipoibd/scripts/vm/kernel"
)

// hosts is the number of daemons on a subnet. There is one more daemon, whose port no subnet manager knows.
const hosts, unmanaged = 3, 3

// wrongPartitions are partitions without a use for IPoIB, as partitions.conf describes them, and what the daemon says.
var wrongPartitions = []struct{ name, pkey, flags, sentence string }{
	{"plain", "0x8011", "defmember=full : ALL=full", "give it the flag ipoib in the partition configuration"},
	{"long", "0x8012", "ipoib, rate=7, mtu=5, defmember=full : ALL=full", "the MTU or the rate of the partition's broadcast group is above that of the port"},
	{"fast", "0x8013", "ipoib, rate=18, mtu=4, defmember=full : ALL=full", "the MTU or the rate of the partition's broadcast group is above that of the port"},
	{"absent", "0x8014", "", "0x8014: P_Key is not in the port's table"},
}

// Three daemons on a subnet of OpenSM reach each other, join and leave groups, and have no carrier before they are
// members of the broadcast group. What is wrong with a subnet or a partition has a sentence of its own.
func TestDaemonsOnASubnet(t *testing.T) {
	guest.Require(t)
	partitions, config := sm.DefaultPartitions, "devices: [{device: ibwire2}]\ninterfaces:\n  - name: ib0\n"
	for i, w := range wrongPartitions {
		if w.flags != "" {
			partitions += fmt.Sprintf("P%d=%s, %s;\n", i, strings.Replace(w.pkey, "0x8", "0x0", 1), w.flags)
		}
		config += fmt.Sprintf("  - {name: %s, pkey: %s}\n", w.name, w.pkey)
	}
	s := sm.Start(t, sm.Spec{Hosts: hosts, Partitions: partitions})
	g, wire := bootHosts(t, s)
	control := activePort(0)
	control.State, control.LID, control.SMLID = hca.PortInit, 0, 0
	sendFrame(t, wire, ibwire.Frame(ibwire.TypeControl, control.Append(nil)))
	const file = "/run/ipoibd.yaml"
	g.Put(file, 0o644, []byte(config))
	var ends []*end
	for i := range hosts + 1 {
		args := []string{"--device", fmt.Sprintf("ibwire%d", i), "--name", "ib0"}
		if i == hosts-1 {
			args = []string{"--config", file}
		}
		ends = append(ends, newEnd(t, g, i, args...))
	}
	d := &daemons{s, ends[:hosts]}
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"no carrier before the join", d.requireJoinFirst},
		{"all pairs", d.requireAllPairs},
		{"a receiver joins and leaves", d.requireMembership},
		{"another subnet manager takes over", d.requireTakeOver},
		{"wrong partitions", func(t *testing.T) {
			for _, w := range wrongPartitions {
				ends[hosts-1].requireSentence(t, w.name, w.sentence)
			}
		}},
		{"a port that no subnet manager has configured", func(t *testing.T) {
			ends[unmanaged].requireSentence(t, "ib0", "no subnet manager has configured the port")
		}},
		{"a port that is down", func(t *testing.T) {
			s.Unlink(0)
			ends[0].requireSentence(t, "ib0", "port 1 is DOWN")
			s.Relink(0)
			eventually(t, carrierLimit, "host 0 has a carrier again", func() bool { return ends[0].carrier("ib0") })
			d.requireAllPairs(t)
		}},
	} {
		if !t.Run(test.name, test.run) {
			break
		}
	}
	requireQuietKernel(t, g)
}

// bootHosts boots a guest with an HCA for each host of a subnet, and one more at the wire that it returns.
func bootHosts(t *testing.T, s *sm.Subnet) (*guest.Guest, *net.UnixConn) {
	t.Helper()
	spec := guest.Spec{Series: kernel.Newest, Memory: 512}
	guids := []uint64{unmanaged: 0x2001}
	for i := range hosts {
		spec.NICs = append(spec.NICs, guest.NIC{Wire: s.Wire(i)})
		guids[i] = s.GUID(i)
	}
	wire, theirs := newWire(t)
	spec.NICs = append(spec.NICs, guest.NIC{Wire: theirs})
	g := guest.Boot(t, spec)
	g.LoadInfiniBand(guids...)
	g.Run("rmmod", "ib_ipoib")
	return g, wire
}

// end is a daemon in a network namespace of a guest.
type end struct {
	*guest.Guest
	number  int
	control string
	daemon  *guest.Process
}

// newEnd starts a daemon, with arguments of `ipoibd run`.
func newEnd(t *testing.T, g *guest.Guest, number int, args ...string) *end {
	t.Helper()
	e := &end{Guest: g, number: number, control: fmt.Sprintf("/run/ipoibd/%d.sock", number)}
	g.Run("ip", "netns", "add", e.namespace())
	e.in("sysctl", "-q", "-w", "net.ipv4.icmp_echo_ignore_broadcasts=0")
	args = append([]string{"netns", "exec", e.namespace(), "ipoibd", "run", "--log-level", "debug", "--control", e.control}, args...)
	e.daemon = g.Start("ip", args...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("daemon %d:\n%s", number, e.daemon.Stderr())
		}
	})
	waitAnswers(t, g, e.daemon, "--control", e.control)
	return e
}

func (e *end) namespace() string { return fmt.Sprintf("n%d", e.number) }

// start starts a program in the daemon's namespace.
func (e *end) start(args ...string) *guest.Process {
	return e.Start("ip", append([]string{"netns", "exec", e.namespace()}, args...)...)
}

// in runs a program in the daemon's namespace.
func (e *end) in(args ...string) string {
	return e.Run("ip", append([]string{"netns", "exec", e.namespace()}, args...)...)
}

func (e *end) carrier(dev string) bool {
	return strings.Contains(e.in("ip", "link", "show", dev), "LOWER_UP")
}

// requireSentence requires that `ipoibd status` and `ipoibd doctor` say of an interface why it has no carrier.
func (e *end) requireSentence(t *testing.T, dev, sentence string) {
	t.Helper()
	e.in("ip", "link", "set", dev, "up")
	took := eventually(t, carrierLimit, fmt.Sprintf("the status of %s says %q", dev, sentence), func() bool {
		return strings.Contains(statusOf(t, e.in("ipoibd", "status", "--json", "--control", e.control), dev).Detail, sentence)
	})
	doctor := e.start("ipoibd", "doctor", "--json", "--control", e.control)
	doctor.Wait(carrierLimit) // it exits with 1
	type finding struct {
		Subject  string `json:"subject"`
		Evidence string `json:"evidence"`
	}
	var report struct {
		Findings []finding `json:"findings"`
	}
	err := json.Unmarshal([]byte(doctor.Stdout()), &report)
	if err != nil || !slices.ContainsFunc(report.Findings, func(f finding) bool {
		return f.Subject == dev && strings.Contains(f.Evidence, sentence)
	}) {
		t.Errorf("the doctor does not say of %s %q:\n%s%s", dev, sentence, doctor.Stdout(), doctor.Stderr())
	}
	if e.carrier(dev) {
		t.Errorf("%s has a carrier", dev)
	}
	t.Logf("%s after %v: %s", dev, took.Round(time.Millisecond), sentence)
}

// daemons are those on a subnet.
type daemons struct {
	*sm.Subnet
	ends []*end
}

// requireJoinFirst sets the interfaces up while the SA is silent, and requires that they have no carrier until it
// answers, and are members of the broadcast group once they have one.
func (d *daemons) requireJoinFirst(t *testing.T) {
	d.SetFaults(sm.Faults{Drop: 100})
	for _, e := range d.ends {
		e.in("ip", "link", "set", "ib0", "up")
	}
	for i, e := range d.ends {
		e.requireSentence(t, "ib0", "the subnet administrator does not answer")
		if record := d.Membership(i, broadcastGroup); len(record) > 0 {
			t.Errorf("host %d is a member before the SA has answered it: %v", i, record)
		}
	}
	d.SetFaults(sm.Faults{})
	start := time.Now()
	for i, e := range d.ends {
		eventually(t, carrierLimit, fmt.Sprintf("host %d has a carrier", i), func() bool { return e.carrier("ib0") })
		t.Logf("host %d: carrier %v after the SA answers", i, time.Since(start).Round(time.Millisecond))
		d.requireMember(t, i, broadcastGroup)
	}
	const net0 network = 0
	for i, e := range d.ends {
		e.in("ip", "addr", "add", net0.ip4(i)+"/24", "dev", "ib0")
		e.in("ip", "addr", "add", net0.ip6(i)+"/64", "dev", "ib0", "nodad")
		e.in("ip", "route", "add", "224.0.0.0/4", "dev", "ib0")
	}
	d.WaitMembers(d.Group(broadcastGroup).MLID, 0, 1, 2)
}

// requireMember requires that saquery shows a host as a full member of a group that has the parameters of the broadcast
// group.
func (d *daemons) requireMember(t *testing.T, host int, mgid hca.GID) {
	t.Helper()
	record := d.Membership(host, mgid)
	for name, want := range map[string]string{
		"JoinState": "0x1", "ProxyJoin": "0x0", "qkey": "0xb1b", "pkey": "0xffff", "mtu": "0x84", "rate": "0x87",
		"SL": "0x0", "TClass": "0x0", "FlowLabel": "0x0", "HopLimit": "0x0",
	} {
		if record[name] != want {
			t.Errorf("host %d in group %v: %s is %q, want %s: %v", host, mgid, name, record[name], want, record)
		}
	}
}

// requireAllPairs requires that all hosts reach each other by IPv4 and IPv6, and all others at once by multicast.
func (d *daemons) requireAllPairs(t *testing.T) {
	const net0 network = 0
	var pings []*guest.Process
	ping := func(from *end, to string, more ...string) *guest.Process {
		return from.start(append([]string{"ping", "-n", "-c", "5", "-i", "0.2", "-W", "10", "-M", "do", "-s", "1900"}, append(more, to)...)...)
	}
	for i, from := range d.ends {
		for j := range d.ends {
			if i != j {
				pings = append(pings, ping(from, net0.ip4(j)), ping(from, net0.ip6(j)))
			}
		}
	}
	requireSuccess(t, pings)
	for i, from := range d.ends {
		for _, group := range []string{"224.0.0.1", "ff02::1%ib0"} {
			p := ping(from, group, "-L")
			eventually(t, carrierLimit, fmt.Sprintf("all others answer host %d to %s", i, group), func() bool {
				return len(answerers(p.Stdout())) >= hosts-1
			})
			p.Wait(carrierLimit)
		}
	}
}

// answerers returns the addresses from which ping got answers.
func answerers(output string) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(output) {
		if _, rest, ok := strings.Cut(line, " bytes from "); ok {
			addr, _, _ := strings.Cut(rest, ": ")
			out[addr] = true
		}
	}
	return out
}

// requireMembership requires that the subnet manager's table of a group follows a receiver that joins and leaves. It has
// no entry for a group of one, so another host stays a member.
func (d *daemons) requireMembership(t *testing.T) {
	const stays, comes, sends = 0, 1, 2
	for _, group := range groups {
		mgid := hca.GIDFromAddr(netip.MustParseAddr(group.mgid))
		join := func(host int) *guest.Process {
			p := d.ends[host].start("numbered", "receive", net.JoinHostPort(group.address, "5300"), "0", "ib0")
			waitPrints(t, p, "listening")
			return p
		}
		stayer := join(stays)
		eventually(t, carrierLimit, "the group exists", func() bool { return len(d.Membership(stays, mgid)) > 0 })
		mlid := d.Group(mgid).MLID
		for range 3 {
			start := time.Now()
			comer := join(comes)
			d.WaitMembers(mlid, stays, comes)
			joined := time.Since(start)
			d.requireMember(t, comes, mgid)
			p := d.ends[sends].start("ping", "-n", "-L", "-c", "5", "-i", "0.2", "-W", "10", group.address)
			eventually(t, carrierLimit, "both members answer", func() bool { return len(answerers(p.Stdout())) == 2 })
			start = time.Now()
			comer.Signal(syscall.SIGTERM)
			d.WaitMembers(mlid)
			left := time.Since(start)
			t.Logf("%s: joined within %v, left within %v", group.address, joined.Round(time.Millisecond), left.Round(time.Millisecond))
			if limit := 20 * time.Second; joined > limit || left > limit { // ten times the goal
				t.Errorf("%s: joined within %v, left within %v, want less than %v", group.address, joined, left, limit)
			}
			p.Wait(carrierLimit)
		}
		stayer.Signal(syscall.SIGTERM)
	}
}

// requireTakeOver requires that no packet between hosts that know each other is lost when the subnet manager is killed
// and another one takes over, and that the hosts are members of their groups soon, old ones and new ones.
func (d *daemons) requireTakeOver(t *testing.T) {
	const net0 network = 0
	const pinger, pinged, pings = 0, 1, "1000"
	ping := d.ends[pinger].start("ping", "-n", "-q", "-c", pings, "-i", "0.01", "-W", "10", net0.ip4(pinged))
	time.Sleep(2 * time.Second) // some of the pings before, most of them while it happens
	d.MoveSM()
	start := time.Now()
	receiver := d.ends[pinged].start("numbered", "receive", "239.1.2.4:5300", "0", "ib0")
	mgid := hca.GIDFromAddr(netip.MustParseAddr("ff12:401b:ffff::f01:204"))
	joined := eventually(t, carrierLimit, "a new group is joined", func() bool { return len(d.Membership(pinged, mgid)) > 0 })
	for i := range d.ends {
		eventually(t, carrierLimit, fmt.Sprintf("host %d is a member of the broadcast group", i), func() bool {
			return len(d.Membership(i, broadcastGroup)) > 0
		})
	}
	t.Logf("a new group joined %v after the take-over, the broadcast group by all within %v", joined.Round(time.Millisecond),
		time.Since(start).Round(time.Millisecond))
	if limit := 20 * time.Second; joined > limit { // ten times the goal
		t.Errorf("a new group is joined %v after the take-over, want less than %v", joined, limit)
	}
	receiver.Signal(syscall.SIGTERM)
	ping.Wait(carrierLimit)
	if want := pings + " packets transmitted, " + pings + " received"; !strings.Contains(ping.Stdout(), want) {
		t.Errorf("want %q:\n%s", want, ping.Stdout())
	}
	d.requireAllPairs(t)
}
