package e2e

import (
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// noticeLimit bounds the time until the status names a condition. The daemon checks every
// second.
const noticeLimit = 10 * time.Second

// The status names the reasons why a host cannot reach its peers, as long as they last: its
// own firewall, a peer's name that does not resolve, another host with its underlay address.
func TestStatusNamesWhatKeepsPeersAway(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	a.join("--peer", b.underlay().String(), "--peer", "nowhere.invalid")
	b.join("--peer", a.underlay().String())
	b.waitReaches(a)
	shows := func(text string) func() bool {
		return func() bool {
			out, err := a.daemon.command("status").CombinedOutput()
			return err == nil && strings.Contains(string(out), text)
		}
	}
	eventually(t, noticeLimit, "a name that does not resolve", shows("cannot resolve peer nowhere.invalid: "))

	const firewall = "a firewall of this host refuses datagrams to UDP port 4791"
	if shows(firewall)() {
		t.Error("the status names a firewall although none refuses anything")
	}
	nft := a.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader("table inet test {\n chain output {\n type filter hook output priority 0\n udp dport 4791 drop\n }\n}\n")
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	eventually(t, noticeLimit, "a firewall", func() bool { a.reaches(b); return shows(firewall)() })
	a.Run("nft", "delete", "table", "inet", "test")

	b.Run("ip", "addr", "add", a.underlay().String()+"/24", "dev", nstest.Dev)
	_ = b.Command("ping", "-c", "1", "-W", "0.3", "-I", a.underlay().String(), nstest.IPv4(77)).Run() // sends an ARP request
	eventually(t, noticeLimit, "another host with the same address", shows(" has the underlay address "+a.underlay().String()+" as well"))
	eventually(t, 3*noticeLimit, "the status no longer names the firewall", func() bool { return !shows(firewall)() })
}
