package e2e

import (
	"fmt"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// echo runs ipoibd ping on a host and returns what it prints.
func (h *host) echo(args ...string) (string, error) {
	args = append([]string{"ping", "--control", h.daemon.control, "--interval", "10ms"}, args...)
	out, err := h.ipoibd(args...).CombinedOutput()
	return string(out), err
}

// ipoibd ping reaches a peer by its address, its GID and its MAC, with frames of every size up to
// the MTU, also while the kernel's firewall stops IP. Every frame is accounted for.
func TestPing(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	a.join()
	b.join()
	b.Run("nft", "add table inet closed")
	b.Run("nft", "add chain inet closed in { type filter hook input priority 0; }")
	b.Run("nft", "add rule inet closed in iifname "+ifName+" drop")
	peer := func() (only peer) {
		t.Helper()
		eventually(t, countLimit, "the status has one peer", func() bool {
			peers := a.iface().Peers
			if len(peers) == 1 {
				only = peers[0]
			}
			return len(peers) == 1
		})
		return only
	}

	// By address first: the peer's daemon answers, but its kernel must still resolve, which ARP
	// below the firewall does.
	out, err := a.echo(b.ip4(), "--count", "20")
	if err != nil || !strings.Contains(out, "20 sent, 20 answered") || !strings.Contains(out, "from "+nstest.IPv4(b.number)) {
		t.Errorf("%v\n%s", err, out)
	}
	t.Log(out[strings.LastIndex(out[:len(out)-1], "\n")+1:])
	for _, target := range []string{peer().GID, peer().MAC} {
		if out, err := a.echo(target, "--count", "2"); err != nil || !strings.Contains(out, "2 sent, 2 answered") {
			t.Errorf("%s: %v\n%s", target, err, out)
		}
	}
	if out, err := a.echo(b.ip4(), "--sweep", "--count", "3"); err != nil || !strings.Contains(out, "packets of all sizes up to the MTU of 1444 pass") {
		t.Errorf("%v\n%s", err, out)
	}
	for target, want := range map[string]string{
		"10.44.0.77":        "no answer",
		"02:00:00:00:00:77": "no peer has this MAC",
		"somewhere":         "is not an IP address, a GID or a MAC",
		a.ip4():             "no answer",
	} {
		if out, err := a.echo(target, "--count", "1", "--timeout", "200ms"); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s", target, err, out)
		}
	}
	if out, err := a.echo(b.ip4(), "--size", "1445"); err == nil || !strings.Contains(out, "it must be from 12 to the MTU of 1444") {
		t.Errorf("%v\n%s", err, out)
	}
	a.requireAccounts()
	b.requireAccounts()
}

// The path loses what is larger than 1000 bytes, on the underlay: the sweep finds the limit.
func TestPingFindsANarrowPath(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	const overhead = 8 + 12 + 8 + 4 + 4 // UDP, BTH, DETH, IPoIB header, ICRC
	b.Run("nft", "add table netdev narrow")
	b.Run("nft", fmt.Sprintf("add chain netdev narrow in { type filter hook ingress device %s priority 0; }", nstest.Dev))
	b.Run("nft", fmt.Sprintf("add rule netdev narrow in udp dport 4791 udp length > %d drop", 1000+overhead))
	out, err := a.echo(b.ip4(), "--sweep", "--count", "2", "--timeout", "200ms")
	// IPoIB messages are padded to four bytes.
	if err == nil || !strings.Contains(out, "packets of up to 1000 bytes pass, larger ones do not, and the MTU of "+ifName+" is 1444") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Log(out)
}

// A peer that floods with echo requests gets a bounded number of answers, and traffic continues.
func TestPingFlood(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	floods := make(chan error)
	for range 8 {
		go func() {
			_, err := a.echo(b.ip4(), "--count", "100")
			floods <- err
		}()
	}
	pingAll(a, b)
	for range 8 {
		if err := <-floods; err != nil {
			t.Error(err)
		}
	}
	a.requireAccounts()
	b.requireAccounts()
}
