package infiniband

import (
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/scripts/vm/guest"
)

// socketBuffer, in bytes, is enough for two seconds of the datagrams here, so that a receiver that waits for its
// processor does not lose what the subnet delivered.
const socketBuffer = "8388608"

// gentle is a load that guests carry without loss: 250 datagrams in a second.
var gentle = []string{"--udp", "--bitrate", "2M", "--length", "1000", "--time", "1"}

// iperf runs iperf3 from one guest to an address of another, with arguments for the client.
func iperf(t *testing.T, from, to *guest.Guest, address string, args ...string) guest.Load {
	t.Helper()
	server := to.Start("iperf3", "--server", "--one-off", "--forceflush")
	waitPrints(t, server, "Server listening")
	out := from.Run("iperf3", append([]string{"--client", address, "--json"}, args...)...)
	server.Wait(carrierLimit)
	return guest.ParseLoad(t, out)
}

// requireTraffic logs the speed of TCP in each direction, and requires that no datagram of a gentle load is lost.
func (p *pair) requireTraffic(t *testing.T, n network) {
	for i, from := range p.guests {
		for _, to := range []string{n.ip4(1 - i), n.ip6(1 - i)} {
			stream := iperf(t, from, p.guests[1-i], to, "--time", "1")
			datagrams := iperf(t, from, p.guests[1-i], to, gentle...)
			t.Logf("host %d to %s: %v; %v", i, to, stream, datagrams)
			if datagrams.All == 0 || datagrams.Lost > 0 {
				t.Errorf("host %d to %s: %d of %d datagrams lost", i, to, datagrams.Lost, datagrams.All)
			}
		}
	}
}

// groups are IP groups, with their zones, and their MGIDs in the default partition (RFC 4391, section 4).
var groups = []struct{ address, mgid string }{
	{"239.1.2.3", "ff12:401b:ffff::f01:203"},
	{"ff12::4321%ib0", "ff12:601b:ffff::4321"},
}

// requireMulticast requires that each host answers the other's requests to all hosts, and receives the datagrams of
// groups that it has joined.
func (p *pair) requireMulticast(t *testing.T, n network) {
	for i, from := range p.guests {
		from.Run("ip", "route", "add", "224.0.0.0/4", "dev", "ib0")
		for _, all := range []struct{ group, answers string }{
			{"224.0.0.1", n.ip4(1 - i)},
			{"ff02::1%ib0", linkLocal(t, p.guests[1-i], "ib0")},
		} {
			ping := from.Start("ping", "-n", "-L", "-c", "3", "-i", "0.2", "-W", "10", all.group)
			if result := ping.Wait(carrierLimit); !result.OK() || !strings.Contains(ping.Stdout(), "from "+all.answers) {
				t.Errorf("host %d pings %s, but %s does not answer:\n%s", i, all.group, all.answers, ping.Stdout())
			}
		}
		for _, g := range groups {
			p.requireGroup(t, i, g.address, hca.GIDFromAddr(netip.MustParseAddr(g.mgid)))
		}
	}
}

// requireGroup requires that the datagrams of a host to a group arrive at the other, all of them once its port is a
// member and the sender may send to the group.
func (p *pair) requireGroup(t *testing.T, host int, group string, mgid hca.GID) {
	t.Helper()
	const count = "100"
	from, to, at := p.guests[host], p.guests[1-host], net.JoinHostPort(group, "5300")
	receiver := to.Start("numbered", "receive", at, count, "ib0")
	waitPrints(t, receiver, "listening")
	took := eventually(t, carrierLimit, group+" is reached", func() bool {
		return from.Try("ping", "-n", "-L", "-c", "1", "-W", "1", group)
	})
	sender := from.Start("numbered", "send", at, count, "1000", "5ms")
	waitPrints(t, sender, "ready")
	sender.Signal(syscall.SIGUSR1)
	if result := sender.Wait(carrierLimit); !result.OK() {
		t.Errorf("the sender to %s: %v\n%s", group, result, sender.Stderr())
	}
	members := p.Members(p.Group(mgid).MLID)
	receiver.Signal(syscall.SIGTERM)
	receiver.Wait(carrierLimit)
	_, report, _ := strings.Cut(receiver.Stdout(), "\n")
	if want := `"distinct":` + count + `,"again":0,"reordered":0,"damaged":0`; !strings.Contains(report, want) {
		t.Errorf("host %d to %s: received %s, want %s", host, group, report, want)
	}
	t.Logf("host %d to %s: the first answer after %v; members %v", host, group, took.Round(time.Millisecond), members)
}
