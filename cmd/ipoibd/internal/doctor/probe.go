package doctor

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/link/kernel"
)

// programLimit bounds another program, which only lists something.
const programLimit = 2 * time.Second

// maxOutput bounds what is read from another program, in bytes.
const maxOutput = 4 << 20

// netdevs lists the netdevs of this network namespace with their addresses.
func netdevs() (out []diagnose.Netdev, _ error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	links, err := kernel.List(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the netdevs: %w", err)
	}
	addrs, err := kernel.List(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	for _, l := range links {
		a := l.Attrs()
		n := diagnose.Netdev{
			Name: a.Name, MTU: a.MTU, Master: names[a.MasterIndex],
			Up: a.Flags&net.FlagUp != 0, Carrier: a.RawFlags&unix.IFF_LOWER_UP != 0,
			Multicast: a.Flags&net.FlagMulticast != 0, Loopback: a.Flags&net.FlagLoopback != 0,
		}
		for _, addr := range addrs {
			ip, ok := netip.AddrFromSlice(addr.IP)
			ones, _ := addr.Mask.Size()
			if ok && addr.LinkIndex == a.Index {
				n.Addrs = append(n.Addrs, diagnose.Addr{
					Prefix: netip.PrefixFrom(ip.Unmap(), ones), Duplicate: addr.Flags&unix.IFA_F_DADFAILED != 0,
				})
			}
		}
		out = append(out, n)
	}
	return out, nil
}

// examineProcess reads the capabilities and limits of a process (proc_pid_status(5),
// proc_pid_limits(5)); 0: of this one.
func examineProcess(pid int) (p diagnose.Process, err error) {
	dir := "/proc/self"
	if pid != 0 {
		dir = fmt.Sprintf("/proc/%d", pid)
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return p, err
	}
	limits, err := os.ReadFile(filepath.Join(dir, "limits"))
	if err != nil {
		return p, err
	}
	p.PID = pid
	for line := range bytes.Lines(status) {
		switch name, value, _ := strings.Cut(string(line), ":"); name {
		case "CapEff":
			p.Caps, err = strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		case "Uid":
			if f := strings.Fields(value); len(f) > 1 {
				p.UID, err = strconv.Atoi(f[1])
			}
		}
		if err != nil {
			return diagnose.Process{}, fmt.Errorf("%s/status: %w", dir, err)
		}
	}
	p.Memlock, p.Files = limit(limits, "Max locked memory"), limit(limits, "Max open files")
	return p, nil
}

// limit returns a soft limit; "unlimited" is the largest number.
func limit(limits []byte, name string) uint64 {
	for line := range bytes.Lines(limits) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			if f := bytes.Fields(rest); len(f) > 0 {
				if n, err := strconv.ParseUint(string(f[0]), 10, 64); err == nil {
					return n
				}
			}
		}
	}
	return unix.RLIM_INFINITY
}

// statFields returns the fields of /proc/PID/stat that follow the name, the third one first
// (proc_pid_stat(5)).
func statFields(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// isStopped reports whether a signal has stopped a process.
func isStopped(pid int) bool {
	f := statFields(pid)
	return len(f) > 0 && f[0] == "T"
}

// ticks is the unit of times in /proc: USER_HZ, which is the same on all architectures of Linux
// that Go supports.
const ticks = time.Second / 100

// clockStep returns by how much the clock was set since a process started: the difference between
// its start by the kernel's boot time clock, which cannot be set, and the start that it recorded.
func clockStep(pid int, believed time.Time) time.Duration {
	f := statFields(pid)
	var boot unix.Timespec
	if len(f) < 20 || unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return 0
	}
	n, err := strconv.ParseInt(f[19], 10, 64) // starttime, field 22
	if err != nil {
		return 0
	}
	age := time.Duration(boot.Nano()) - time.Duration(n)*ticks
	return time.Now().Round(0).Add(-age).Sub(believed)
}

// checkControl returns why the control socket could not be created. Its directory is created if it
// is missing, so what counts is the first one above it that exists.
func checkControl(path string) error {
	dir := filepath.Dir(path)
	for {
		st, err := os.Stat(dir)
		switch {
		case err == nil && !st.IsDir():
			return fmt.Errorf("%s is not a directory", dir)
		case err == nil:
			return writable(dir)
		case !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir):
			return err
		}
		dir = filepath.Dir(dir)
	}
}

func writable(dir string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return &fs.PathError{Op: "write to", Path: dir, Err: err}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err == nil && (st.Blocks > 0 && st.Bavail == 0 || st.Files > 0 && st.Ffree == 0) {
		return fmt.Errorf("the file system of %s is full: %d blocks and %d inodes are free", dir, st.Bavail, st.Ffree)
	}
	return nil
}

// run returns the output of a program of this host that lists something, or nil if it fails, is
// missing, prints too much or takes too long.
func run(ctx context.Context, name string, args ...string) []byte {
	ctx, cancel := context.WithTimeout(ctx, programLimit)
	defer cancel()
	var out bounded
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.WaitDelay = &out, programLimit // the delay is for what the program has started
	if cmd.Run() != nil {
		return nil
	}
	return out.text
}

// bounded keeps at most maxOutput bytes, and refuses more.
type bounded struct{ text []byte }

func (b *bounded) Write(p []byte) (int, error) {
	if len(b.text)+len(p) > maxOutput {
		return 0, bytes.ErrTooLarge
	}
	b.text = append(b.text, p...)
	return len(p), nil
}

// examineService asks systemd about ipoibd.service, whose control socket is the default one.
func examineService(ctx context.Context, path string) (s diagnose.Service) {
	if _, err := os.Stat("/run/systemd/system"); err != nil || path != config.DefaultControl {
		return s
	}
	return parseService(run(ctx, "systemctl", "show", "ipoibd.service",
		"--property=LoadState,ActiveState,Result,NRestarts"))
}

// parseService reads the output of systemctl show. A unit that is not loaded counts as no service.
func parseService(text []byte) diagnose.Service {
	values := map[string]string{}
	for line := range bytes.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), "=")
		values[name] = value
	}
	if values["LoadState"] != "loaded" {
		return diagnose.Service{}
	}
	return diagnose.Service{
		Active: values["ActiveState"], Result: values["Result"], Restarts: values["NRestarts"],
	}
}

// examineFirewall finds the rules of nftables that drop what peers send, and the chains that drop what this host
// forwards. Without the right to list them, or without nft, it finds none.
func (g *gatherer) examineFirewall(ctx context.Context) {
	g.Drops, g.Forwarding = parseFirewall(run(ctx, "nft", "--handle", "--numeric", "list", "ruleset"))
	text, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-iptables")
	g.BridgesFiltered = err == nil && strings.TrimSpace(string(text)) == "1"
}

var (
	nftTable = regexp.MustCompile(`^table (\S+) (\S+) \{`)
	nftChain = regexp.MustCompile(`^\s*chain (\S+) \{`)
	nftHook  = regexp.MustCompile(`^\s*type \S+ hook (\S+) .*?(policy drop;)?$`)
	// nftDrop matches only a rule without further conditions. If it has a counter, that must not be 0.
	nftDrop = regexp.MustCompile(`^\s*(udp dport 4791 (?:counter packets [1-9]\d* bytes \d+ )?` +
		`(?:drop|reject\b.*?)) # handle (\d+)$`)
)

// parseFirewall returns the rules of a listing that drop every datagram to UDP port 4791 that this
// host receives, and the chains that drop what it forwards. A rule that follows another one about the port is left
// out: that one may accept what matters.
func parseFirewall(listing []byte) (drops []diagnose.FirewallRule, forwarding []diagnose.FirewallChain) {
	var r diagnose.FirewallRule
	tables := map[[2]string]string{}
	receives, mentioned := false, false
	lines := bufio.NewScanner(bytes.NewReader(listing))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case nftTable.MatchString(line):
			m := nftTable.FindStringSubmatch(line)
			r = diagnose.FirewallRule{Family: m[1], Table: m[2]}
		case nftChain.MatchString(line):
			r.Chain, receives, mentioned = nftChain.FindStringSubmatch(line)[1], false, false
		case nftHook.MatchString(line):
			hook := nftHook.FindStringSubmatch(line)
			receives = slices.Contains([]string{"input", "prerouting", "ingress"}, hook[1])
			if hook[1] == "forward" && hook[2] != "" && r.Family != "bridge" && r.Family != "netdev" {
				forwarding = append(forwarding, diagnose.FirewallChain{Family: r.Family, Table: r.Table, Chain: r.Chain})
			}
		case receives && !mentioned && nftDrop.MatchString(line):
			m := nftDrop.FindStringSubmatch(line)
			r.Text, r.Handle = m[1], m[2]
			drops = append(drops, r)
		}
		tables[[2]string{r.Family, r.Table}] += line + "\n"
		mentioned = mentioned || strings.Contains(line, "4791")
	}
	for i := range forwarding {
		forwarding[i].Text = tables[[2]string{forwarding[i].Family, forwarding[i].Table}]
	}
	return drops, forwarding
}

// unforwarded returns how many IPv4 packets for other hosts this one has dropped, since it does not forward
// (InAddrErrors of RFC 4293).
func unforwarded() (uint64, error) {
	text, err := os.ReadFile("/proc/net/snmp")
	if err != nil {
		return 0, err
	}
	lines := strings.SplitN(string(text)+"\n\n", "\n", 3) // names and values, of IP first
	values := strings.Fields(lines[1])
	if i := slices.Index(strings.Fields(lines[0]), "InAddrErrors"); i > 0 && i < len(values) {
		return strconv.ParseUint(values[i], 10, 64)
	}
	return 0, errors.New("/proc/net/snmp has no InAddrErrors")
}

// tapHolders returns the processes of this network namespace, except one, with a queue of a TAP
// (proc_pid_fdinfo(5)).
func tapHolders(name string, except int) (out []diagnose.Holder) {
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil
	}
	line := []byte("\niff:\t" + name + "\n")
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if ns, err := os.Readlink(filepath.Join(dir, "ns/net")); pid == except || err != nil || ns != here {
			continue
		}
		files, _ := filepath.Glob(filepath.Join(dir, "fdinfo/*"))
		if slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && bytes.Contains(text, line)
		}) {
			comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
			out = append(out, diagnose.Holder{PID: pid, Name: strings.TrimSpace(string(comm))})
		}
	}
	return out
}
