package rdma

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// A netdev that its driver has created again gets back its addresses, its MTU, its routes and its
// MAC, and is up, once it has its former name.
func TestNetdevIsRestored(t *testing.T) {
	ns := nstest.New(t)
	create := func(name string) {
		ns.Run("ip", "link", "add", name, "address", "02:00:00:00:00:77", "type", "veth", "peer", "name", "peer")
		ns.Run("ip", "link", "set", "peer", "up")
	}
	create("eth0")
	for _, args := range []string{
		"link set eth0 mtu 4200 address 02:00:00:00:00:99 up",
		"addr add 192.0.2.1/24 broadcast 192.0.2.255 dev eth0",
		"addr add 192.0.2.7/24 dev eth0 valid_lft 1000 preferred_lft 500",
		"addr add 2001:db8::1/64 dev eth0 nodad",
		"route add 198.51.100.0/24 via 192.0.2.254 metric 7",
		"route add 203.0.113.1 dev eth0 table 42",
		"route add default via 203.0.113.1 dev eth0 table 42 onlink",
		"route add 2001:db8:1::/48 via 2001:db8::fe dev eth0",
	} {
		ns.Run("ip", strings.Fields(args)...)
	}
	index := regexp.MustCompile(`^\d+: `)
	show := func() string {
		all := ns.Run("ip", "-o", "addr", "show", "dev", "eth0", "scope", "global")
		for _, args := range []string{"-o link show dev eth0", "route show dev eth0 table all", "-6 route show dev eth0 table all"} {
			all += ns.Run("ip", strings.Fields(args)...)
		}
		var lines []string
		for line := range strings.Lines(all) { // without indices, the lifetimes that run down, and what the kernel adds by itself
			line = index.ReplaceAllString(line, "")
			if line, _, _ = strings.Cut(line, "valid_lft"); !strings.Contains(line, "fe80::") && !strings.Contains(line, "ff00::") && !strings.Contains(line, "table local") {
				lines = append(lines, strings.TrimSpace(strings.ReplaceAll(line, " linkdown", "")))
			}
		}
		return strings.Join(lines, "\n")
	}
	want := show()
	var saved *Netdev
	var err error
	ns.Do(func() { saved, err = SaveNetdev("eth0") })
	must(t, err)
	ns.Run("ip", "link", "del", "eth0")
	create("enp1s0")
	renamed := make(chan struct{})
	go func() {
		defer close(renamed)
		time.Sleep(50 * time.Millisecond)
		ns.Run("ip", "link", "set", "enp1s0", "name", "eth0")
	}()
	ns.Do(func() { err = saved.Restore() })
	must(t, err)
	<-renamed
	if got := show(); got != want {
		t.Errorf("restored:\n%s\nwant:\n%s", got, want)
	}
	ns.Do(func() { err = saved.Restore() })
	if got := show(); err != nil || got != want {
		t.Errorf("the second time: %v\n%s", err, got)
	}
}
