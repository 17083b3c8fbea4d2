package link

import (
	"fmt"
	"os"
	"regexp"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// signed matches the alias of an interface that a process holds, in whatever PID namespace.
var signed = regexp.MustCompile(`^` + AliasPrefix + `: process \d+ of (pid:\[\d+\])?$`)

// signature is the alias of an interface that a process of this PID namespace holds.
func signature(pid int) string {
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	return fmt.Sprintf("%s: process %d of %s", AliasPrefix, pid, namespace)
}

// sign records this process in the alias of an interface as its holder, unless the host has chosen another alias.
// Other processes report the PID in their errors. The alias does not protect the interface: the queues do. So a
// failure, for lack of rights, costs only the PID.
func sign(r *rtnl, l netlink.Link) {
	own := signature(os.Getpid())
	if was := l.Attrs().Alias; was == AliasPrefix || signed.MatchString(was) && was != own {
		_ = setAlias(r, l, own)
	}
}

// unsign undoes sign.
func unsign(r *rtnl, l netlink.Link) error {
	if l.Attrs().Alias != signature(os.Getpid()) {
		return nil
	}
	return setAlias(r, l, AliasPrefix)
}

func setAlias(r *rtnl, l netlink.Link, alias string) error {
	return r.setLink(l.Attrs().Index, nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)))
}

// holder returns the PID of the process that has signed an interface, or 0 if this PID namespace has no such process.
func holder(l netlink.Link) (pid int) {
	alias := l.Attrs().Alias
	_, _ = fmt.Sscanf(alias, AliasPrefix+": process %d", &pid)
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil || alias != signature(pid) {
		return 0
	}
	return pid
}
