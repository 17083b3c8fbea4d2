package link

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"ipoibd/link/kernel"
)

// The kernel's lists of multicast groups in the network namespace of the thread. The netlink of Linux 6.1 and 6.12 has
// no list of those of IPv4, and reports no changes.
const (
	groupsIPv4 = "/proc/thread-self/net/igmp"
	groupsIPv6 = "/proc/thread-self/net/igmp6"
)

// Groups lists the IP multicast groups that the host has joined on the interface and on its master, those of IPv4
// first. May block.
func (t *TAP) Groups() (out []netip.Addr, err error) {
	err = t.dev.visit(func(_ *rtnl, l netlink.Link) error {
		ns, err := t.tun.namespace()
		if err != nil {
			return err
		}
		defer ns.Close()
		on := []int{l.Attrs().Index}
		if master := l.Attrs().MasterIndex; master != 0 {
			on = append(on, master)
		}
		entered := kernel.InNamespace(ns, func() { out, err = readGroups(on) })
		return errors.Join(entered, err)
	})
	if err != nil {
		return nil, fmt.Errorf("list the multicast groups of %s: %w", t.tun.name, err)
	}
	return out, nil
}

// readGroups reads the lists of the calling thread's namespace.
func readGroups(on []int) (out []netip.Addr, err error) {
	for _, list := range []struct {
		path  string
		parse func(text string, on []int) []netip.Addr
	}{{groupsIPv4, parseIGMP}, {groupsIPv6, parseIGMP6}} {
		text, err := os.ReadFile(list.path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // without IPv6 there is no list of it
			return nil, err
		}
		out = append(out, list.parse(string(text), on)...)
	}
	return out, nil
}

// parseIGMP returns the groups of some interfaces from the text of /proc/net/igmp (igmp_mc_seq_show, net/ipv4/igmp.c).
// The line of an interface begins with its index. Those of its groups follow, each with a tab before the address, which
// is a big-endian number printed as one of the host.
//
//	Idx	Device    : Count Querier	Group    Users Timer	Reporter
//	7	ib0       :     1      V3
//					010000E0     1 0:00000000		0
func parseIGMP(text string, on []int) (out []netip.Addr) {
	wanted := false
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case line[0] != '\t':
			wanted = isOn(fields[0], on)
		case wanted:
			if n, err := strconv.ParseUint(fields[0], 16, 32); err == nil && len(fields[0]) == 8 {
				out = append(out, netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, uint32(n)))))
			}
		}
	}
	return out
}

// parseIGMP6 is the same for /proc/net/igmp6 (igmp6_mc_seq_show, net/ipv6/mcast.c), which has a line for each group.
//
//	7    ib0             ff0200000000000000000000000000fb     1 00000004 0
func parseIGMP6(text string, on []int) (out []netip.Addr) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 3 || !isOn(fields[0], on) {
			continue
		}
		if b, err := hex.DecodeString(fields[2]); err == nil && len(b) == 16 {
			out = append(out, netip.AddrFrom16([16]byte(b)))
		}
	}
	return out
}

// isOn reports whether the text of an index is that of one of the interfaces.
func isOn(text string, on []int) bool {
	index, err := strconv.Atoi(text)
	for _, i := range on {
		if err == nil && i == index {
			return true
		}
	}
	return false
}
