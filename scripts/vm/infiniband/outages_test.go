package infiniband

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/ibwire"
)

const (
	// outageLimit is how long an outage may last beyond the fault's own duration: ten times the 10 s in which an idle
	// machine is back.
	outageLimit = 100 * time.Second
	// unplugged is how long the cable of a port is pulled.
	unplugged = 5 * time.Second
)

// fault is what happens to a subnet. Run returns once it is over, as far as the switch shows it.
type fault struct {
	name string
	lost time.Duration // for which the hosts cannot reach each other, in any case
	run  func(t *testing.T)
}

func (p *pair) faults() []fault {
	return []fault{
		{"the daemon is killed and started again", 0, func(t *testing.T) {
			p.daemon.Signal(syscall.SIGKILL)
			p.daemon.Wait(carrierLimit)
			p.restartDaemon(t)
		}},
		{"the subnet manager is restarted", 0, func(t *testing.T) {
			p.restartSM(t, func() {
				p.RestartSM(false)
				p.WaitSM()
			})
		}},
		{"the daemon's cable is pulled", unplugged, func(*testing.T) { p.pull(ours) }},
		{"the peer's cable is pulled", unplugged, func(*testing.T) { p.pull(theirs) }},
		{"the daemon's LID changes and is restored", 0, func(t *testing.T) { p.disturbLID(t, ours) }},
		{"the peer's LID changes and is restored", 0, func(t *testing.T) { p.disturbLID(t, theirs) }},
		{"the daemon's LID changes", 0, func(t *testing.T) { p.moveLID(t, ours) }},
		{"the peer's LID changes", 0, func(t *testing.T) { p.moveLID(t, theirs) }},
	}
}

// restartSM restarts the subnet manager, which has then forgotten the groups' members and asks the hosts to join again.
func (p *pair) restartSM(t *testing.T, restart func()) {
	t.Helper()
	var before [2]int
	for i := range before {
		before[i] = p.Counters(i).Requests
	}
	restart()
	for i := range before {
		p.Raise(i, ibwire.ClientReregister)
	}
	eventually(t, carrierLimit, "the hosts ask the subnet manager", func() bool {
		return p.Counters(ours).Requests > before[ours] && p.Counters(theirs).Requests > before[theirs]
	})
}

func (p *pair) pull(host int) {
	p.Unlink(host)
	p.WaitState(host, hca.PortDown)
	time.Sleep(unplugged)
	p.Relink(host)
	p.WaitState(host, hca.PortActive)
}

// newLID is how far a port's LID moves: beyond those of all ports.
const newLID = 33

// disturbLID gives a port another LID, and waits until the subnet manager has restored the old one.
func (p *pair) disturbLID(t *testing.T, host int) {
	t.Helper()
	lid := p.Port(host).LID
	p.ChangeLID(host, lid+newLID)
	eventually(t, carrierLimit, fmt.Sprintf("host %d has LID %d again", host, lid), func() bool { return p.Port(host).LID == lid })
}

// moveLID gives a port another LID, which a restarted subnet manager accepts.
func (p *pair) moveLID(t *testing.T, host int) {
	t.Helper()
	p.restartSM(t, func() { p.MoveLID(host, p.Port(host).LID+newLID) })
}

// requireOutagesEnd requires that after each fault the hosts reach each other again, without an interruption of TCP,
// and logs how long they did not.
func (p *pair) requireOutagesEnd(t *testing.T, n network) {
	from, to := p.guests[ours], p.guests[theirs]
	waitPrints(t, to.Start("iperf3", "--server", "--forceflush"), "Server listening")
	stream := from.Start("iperf3", "--client", n.ip4(theirs), "--time", "86400", "--bitrate", "1M", "--interval", "0")
	moves := func(what string, limit time.Duration) time.Duration {
		before := delivered(t, to)
		return eventually(t, limit, "the stream delivers data "+what, func() bool {
			select {
			case <-stream.Exited():
				t.Fatalf("the stream has ended %s\n%s%s", what, stream.Stdout(), stream.Stderr())
			default:
			}
			return delivered(t, to) > before+streamed
		})
	}
	moves("at first", carrierLimit)
	for _, f := range p.faults() {
		start := time.Now()
		outage := p.outage(t, n, f.run)
		took := time.Since(start)
		moved := moves("after: "+f.name, outageLimit)
		t.Logf("%s: %v without an answer; the stream delivers %d bytes within %v more; all took %v", f.name,
			outage.Round(time.Millisecond), streamed, moved.Round(time.Millisecond), took.Round(time.Millisecond))
		if outage < f.lost/2 || outage > f.lost+outageLimit { // the guests' clocks may be wrong
			t.Errorf("%s: %v without an answer, want about %v, and at most %v more", f.name, outage, f.lost, outageLimit)
		}
		for _, g := range p.guests {
			g.Run("ip", "-4", "neigh", "flush", "dev", "ib0") // so that requests go to the broadcast group
		}
		to.Run("ip", "-6", "neigh", "flush", "dev", "ib0") // and solicitations to groups of the daemon's host
		p.requireReached(t, n)
	}
	stream.Signal(syscall.SIGKILL)
}

// streamed is how many bytes show that a stream continues: more than its control connection carries.
const streamed = 64 << 10

var bytesReceived = regexp.MustCompile(`\sbytes_received:(\d+)`)

// delivered returns how many bytes a guest has received from the connections of iperf3 that exist.
func delivered(t *testing.T, g *guest.Guest) (sum int) {
	t.Helper()
	for _, m := range bytesReceived.FindAllStringSubmatch(g.Run("ss", "-HOtin", "state", "established", "sport = 5201"), -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatalf("ss: %v", err)
		}
		sum += n
	}
	return sum
}

// Requests are sent each echoInterval; a host is reached again once it has answered echoes of them.
const (
	echoInterval = 100 * time.Millisecond
	echoes       = 10
)

// outage runs a fault while the kernel's host pings the daemon's, and returns the longest time between two answers.
func (p *pair) outage(t *testing.T, n network, run func(*testing.T)) time.Duration {
	t.Helper()
	ping := p.guests[theirs].Start("ping", "-n", "-D", "-i", fmt.Sprint(echoInterval.Seconds()), n.ip4(ours))
	answers := func() int { return strings.Count(ping.Stdout(), " bytes from ") }
	eventually(t, carrierLimit, "the daemon's host answers", func() bool { return answers() >= echoes })
	run(t)
	before := answers()
	eventually(t, outageLimit, "the daemon's host answers again", func() bool { return answers() >= before+echoes })
	ping.Signal(syscall.SIGINT)
	ping.Wait(carrierLimit)
	return longestPause(t, ping.Stdout())
}

var answeredAt = regexp.MustCompile(`(?m)^\[(\d+\.\d+)\] \d+ bytes from `)

// longestPause returns the longest time between two answers in the output of ping -D.
func longestPause(t *testing.T, output string) (pause time.Duration) {
	t.Helper()
	var last float64
	for _, m := range answeredAt.FindAllStringSubmatch(output, -1) {
		at, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatalf("ping: %v", err)
		}
		if last != 0 {
			pause = max(pause, time.Duration((at-last)*float64(time.Second)))
		}
		last = at
	}
	return pause
}

func TestLongestPause(t *testing.T) {
	const output = `PING 10.44.0.1 (10.44.0.1) 56(84) bytes of data.
[100.000000] 64 bytes from 10.44.0.1: icmp_seq=1 ttl=64 time=1.0 ms
[100.250000] 64 bytes from 10.44.0.1: icmp_seq=2 ttl=64 time=1.0 ms
[101.000000] From 10.44.0.2 icmp_seq=3 Destination Host Unreachable
[102.500000] 64 bytes from 10.44.0.1: icmp_seq=4 ttl=64 time=1.0 ms
[102.600000] 64 bytes from 10.44.0.1: icmp_seq=5 ttl=64 time=1.0 ms
`
	if got := longestPause(t, output); got != 2250*time.Millisecond {
		t.Errorf("%v, want 2.25s", got)
	}
}
