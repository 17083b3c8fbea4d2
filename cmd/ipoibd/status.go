package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/terminal"
	"ipoibd/docs"
	"ipoibd/qprecovery"
)

func statusCommand() *cobra.Command {
	var asJSON, verbose, brief, check bool
	var iface string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of interfaces and devices",
		Long: "Show the state of interfaces and devices. The output of --json conforms to\n" +
			"docs/status.schema.json. With --check, the command prints nothing and exits with 0 if\n" +
			"all interfaces are up, and the daemon could assign their configured addresses and\n" +
			"routes; otherwise it prints why not, and exits with 3. --interface takes the name\n" +
			"of an interface, the path of the network namespace to which it is lent, or the beginning\n" +
			"of a part of its owner, such as the ID of a container; devices are not shown then.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := control.GetStatus(cmd.Context(), socket(cmd))
			if err != nil {
				return err
			}
			if iface != "" {
				if err := onlyInterface(s, iface); err != nil {
					return err
				}
			}
			switch {
			case check:
				return unhealthy(s)
			case asJSON:
				return printJSON(cmd.OutOrStdout(), s)
			case brief:
				return printBrief(cmd.OutOrStdout(), s)
			}
			return printStatus(cmd.OutOrStdout(), s, verbose)
		},
	}
	bindControl(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "output as JSON")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "also show addresses, peers, groups, and nonzero counters")
	cmd.Flags().BoolVarP(&brief, "brief", "b", false, "a line for each interface and each device")
	bindName(cmd, &iface, "interface", "I", "show only this interface")
	cmd.Flags().BoolVar(&check, "check", false,
		"exit with 3 unless all interfaces are up, with their addresses and routes")
	for _, other := range []string{"json", "verbose", "check"} {
		cmd.MarkFlagsMutuallyExclusive("brief", other)
	}
	return cmd
}

// onlyInterface reduces a status to the interfaces that an operator names.
func onlyInterface(s *report.Status, name string) error {
	s.Devices = []report.Device{}
	s.Interfaces = slices.DeleteFunc(s.Interfaces, func(f report.Interface) bool {
		return name != f.Name && name != f.Netns && !strings.Contains("/"+f.Owner, "/"+name)
	})
	if len(s.Interfaces) == 0 {
		return noInterface(name)
	}
	return nil
}

// unhealthy returns why interfaces are not ready, or nil if all are.
func unhealthy(s *report.Status) (err error) {
	for _, u := range diagnose.NotReady(s) {
		err = errors.Join(err, u)
	}
	return err
}

// printer prints a status in columns.
type printer struct {
	io.Writer
	*report.Status
	verbose bool
}

// printStatus prints the status as text. Without verbose it prints only what an operator
// looks at first.
func printStatus(out io.Writer, s *report.Status, verbose bool) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	p := printer{w, s, verbose}
	p.line("%s\tpid %d, up %s", s.Version, s.PID, s.Time.Sub(s.Started).Round(time.Second))
	p.line("sandbox\t%s", confinement(&s.Sandbox))
	for i := range s.Interfaces {
		p.printInterface(&s.Interfaces[i])
	}
	for i := range s.Devices {
		p.printDevice(&s.Devices[i])
	}
	return w.Flush()
}

func (p *printer) line(format string, args ...any) { terminal.Fprintf(p, format+"\n", args...) }

// optional prints a line unless its text is empty.
func (p *printer) optional(label, text string) {
	if text != "" {
		p.line("  %s\t%s", label, text)
	}
}

// confinement describes the sandbox of the daemon.
func confinement(s *report.Sandbox) string {
	if !s.On {
		return "off"
	}
	parts := []string{"no_new_privs"}
	if s.Landlock > 0 {
		parts = append(parts, fmt.Sprintf("Landlock ABI %d", s.Landlock))
	}
	if s.Seccomp {
		parts = append(parts, "seccomp")
	}
	held := "none"
	if len(s.Capabilities) > 0 {
		held = strings.Join(s.Capabilities, " ")
	}
	text := strings.Join(parts, ", ") + "; capabilities " + held
	if len(s.Missing) > 0 {
		text += "; missing: " + strings.Join(s.Missing, "; ")
	}
	return text
}

// since returns a time and how long ago it was.
func (p *printer) since(t time.Time) string {
	return fmt.Sprintf("since %s (%s)", t.Local().Format(time.DateTime), terminal.Short(p.Time.Sub(t)))
}

// mtu returns the MTU of an interface, and the path that determines it.
func mtu(f *report.Interface) string {
	if l := f.MTULimit; l.To.IsValid() {
		return fmt.Sprintf("%d, because of the path to %s, whose MTU is %d", f.MTU, l.To, l.MTU)
	}
	return strconv.Itoa(f.MTU)
}

func (p *printer) printInterface(f *report.Interface) {
	p.line("\ninterface %s\t%s %s", f.Name, f.State, p.since(f.Since))
	p.optional("reason", f.Because())
	p.optional("notice", f.Notice)
	p.optional("out of date", diagnose.Stale(p.Status, f))
	p.current(f.Recovery)
	kernel := func(name string) uint64 { return f.Kernel[name].Value }
	p.line("  device\t%s, port %d", f.Device, f.Port)
	if f.Netns != "" {
		lent := fmt.Sprintf("%s, as %s, for %s", f.Netns, cmp.Or(f.Netdev, f.Name), f.Owner)
		p.optional("lent to", strings.TrimSuffix(lent, ", for "))
	}
	p.line("  carrier\t%s", map[bool]string{true: "on", false: "off"}[f.Carrier])
	p.line("  MTU\t%s", mtu(f))
	p.line("  peers\t%d", len(f.Peers))
	traffic := f.Traffic()
	p.line("  RX\t%d packets, %d bytes", traffic.RXPackets, traffic.RXBytes)
	p.line("  TX\t%d packets, %d bytes", traffic.TXPackets, traffic.TXBytes)
	p.line("  drops\t%d", f.Drops)
	p.line("  kernel drops\t%d", kernel(docs.InterfaceKernelRxDropped)+kernel(docs.InterfaceKernelRxErrors)+
		kernel(docs.InterfaceKernelTxDropped)+kernel(docs.InterfaceKernelTxErrors))
	p.past(f.Recovery)
	if !p.verbose {
		return
	}
	if f.LastError != "" && f.LastError != f.Detail {
		p.line("  last error\t%s", f.LastError)
	}
	p.line("  MAC\t%s", f.MAC)
	for _, st := range f.Stations {
		text := cmp.Or(strings.Join(st.IPs, ", "), "no address")
		if st.Router {
			text += "; IPv6 router"
		}
		if len(st.Groups) > 0 {
			text += "; member of " + strings.Join(st.Groups, ", ")
		}
		if st.Default && len(f.Stations) > 1 {
			text += "; default for unknown addresses"
		}
		p.line("  station %s\t%s", st.MAC, text)
	}
	if q := f.QP; q != nil {
		state := strings.TrimSpace(q.State + " generation " + fmt.Sprint(q.Generation))
		p.line("  QP %s\t%s, P_Key 0x%04x, Q_Key 0x%08x, GID %s", q.QPN, state, uint16(q.PKey), uint32(q.QKey), q.GID)
	}
	for _, g := range f.Groups {
		p.line("  group\t%s by %s", g.MGID, g.Attach)
	}
	for _, peer := range f.Peers {
		handle := strings.Join(append([]string{peer.Handle}, peer.IPs...), ", ")
		p.line("  peer %s\t%s, QP %s, AH %s", peer.MAC, peer.GID, peer.QPN, handle)
	}
	p.counters(f.Counters, docs.InterfaceCounter)
	p.counters(f.Kernel, docs.InterfaceCounter)
}

// hints maps states of a device to the command that leaves them.
var hints = map[string]string{
	qprecovery.DeviceGivenUp.String():   "'ipoibd recover' retries it",
	qprecovery.DeviceSuspended.String(): "'ipoibd resume' opens it",
}

func (p *printer) printDevice(d *report.Device) {
	title := "device " + d.Name
	if d.Underlay != "" {
		title += " on " + d.Underlay
	}
	p.line("\n%s\t%s %s", title, d.State, p.since(d.Since))
	p.optional("reason", because(d))
	p.optional("hint", hints[d.State])
	p.current(d.Recovery)
	if c := d.Coordinator; c != nil && (len(c.Members) > 0 || c.Leader != nil || c.Trouble != "") {
		p.line("  coordinator\t%s", p.coordinator(c))
	}
	p.optional("notice", d.Notice)
	p.line("  drops\t%d", d.Drops)
	p.past(d.Recovery)
	if !p.verbose {
		return
	}
	if a := d.Attr; a != nil {
		text := "node GUID " + a.NodeGUID.String()
		if d.Reset != "" { // a device of the kernel, with a name of its own
			text = a.Name + ", " + text + ", reset " + d.Reset
		}
		if a.PCIAddr != "" {
			text += ", PCI " + a.PCIAddr
		}
		p.line("  %s\t%s", d.Kind, text)
	}
	for _, port := range d.Ports {
		p.line("  port %d\t%s, MTU %d, %s", port.Num, port.State, port.ActiveMTU, port.LinkLayer)
		for i, g := range port.GIDs {
			if !g.GID.IsZero() {
				p.line("  GID %d\t%s, %s, up to %d bytes%s",
					i, g.GID, g.Type, g.MaxPayload, narrowest(g.Path.To, g.Path.Carries))
			}
		}
	}
	if d.Replicates {
		names := make([]string, 0, len(d.Peers))
		for _, a := range d.Peers {
			names = append(names, a.String())
		}
		others := ""
		if d.KnownPeersOnly {
			others = "; datagrams from other senders are dropped"
		}
		p.line("  peers\tmulticast is replicated to %s%s", strings.Join(names, ", "), others)
	}
	p.counters(d.Counters, docs.DeviceCounter)
}

// narrowest describes the narrowest path from a GID, if there is one.
func narrowest(to netip.Addr, carries int) string {
	if !to.IsValid() {
		return ""
	}
	return fmt.Sprintf("; the path to %s carries %d", to, carries)
}

// coordinator names the processes that share the device, and the one that resets it.
func (p *printer) coordinator(c *report.Coordinator) string {
	text := "reset " + c.Phase
	switch l := c.Leader; {
	case c.Trouble != "":
		text = "cannot reach other daemons: " + c.Trouble
	case c.Leading:
		text += ", led by this daemon"
	case l != nil:
		text += ", led by process " + strings.TrimSpace(fmt.Sprintf("%d %s", l.PID, l.Name))
		if !l.SilentSince.IsZero() {
			text += ", which has made no progress " + p.since(l.SilentSince) + "; the device cannot be reset without it"
		}
	}
	if len(c.Members) > 0 {
		text += "; shared with " + strings.Join(c.Members, ", ")
	}
	return text
}

// current prints the current recovery, if any.
func (p *printer) current(r *report.Recovery) {
	if r.Since.IsZero() {
		return
	}
	lasts := p.Time.Sub(r.Since)
	text := fmt.Sprintf("%s (%s) because of %s, for %s, outage %s",
		r.Rung, r.State, r.Reason, terminal.Short(lasts), terminal.Short(max(lasts, time.Duration(r.Outage))))
	if !r.NextTry.IsZero() {
		text += "; next try in " + terminal.Short(max(r.NextTry.Sub(p.Time), 0)).String()
	}
	if !r.GivesUp.IsZero() {
		text += "; gives up in " + terminal.Short(max(r.GivesUp.Sub(p.Time), 0)).String()
	}
	p.line("  recovery\t%s", text)
}

// past prints the number of recoveries and the last one that has ended. A suspension is not
// a recovery.
func (p *printer) past(r *report.Recovery) {
	p.line("  recoveries\t%d", r.Recovered)
	ended := slices.DeleteFunc(slices.Clone(r.History), func(l report.RecoveryRecord) bool { return l.End.IsZero() })
	if len(ended) > 0 {
		l := ended[len(ended)-1]
		took, ago := terminal.Short(time.Duration(l.Duration)), terminal.Short(p.Time.Sub(l.End))
		verb := map[bool]string{true: "stopped", false: "recovered"}[l.Stopped]
		if l.Rung == qprecovery.RungSuspend.String() {
			p.line("  last outage\tnone; resumed %s ago, was suspended for %s", ago, took)
		} else {
			p.line("  last outage\t%s, %s %s ago by %s because of %s, which took %s",
				terminal.Short(time.Duration(l.Outage)), verb, ago, l.Rung, l.Reason, took)
		}
	}
	if p.verbose && len(r.Rungs) > 0 {
		p.line("  rungs\t%s", counted(r.Rungs, qprecovery.NumRung))
		p.line("  reasons\t%s", counted(r.Reasons, qprecovery.NumReason))
	}
}

// counted lists counts in the order of the enumeration that ends at bound.
func counted[E interface {
	~uint8
	fmt.Stringer
}](counts map[string]uint64, bound E) string {
	var parts []string
	for e := range bound {
		if n := counts[e.String()]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", e, n))
		}
	}
	return strings.Join(parts, ", ")
}

var digits = regexp.MustCompile("[0-9]+")

// byNumbers orders names, and the numbers in them by value.
func byNumbers(a, b string) int {
	padded := func(s string) string {
		return digits.ReplaceAllStringFunc(s, func(n string) string { return fmt.Sprintf("%020s", n) })
	}
	return strings.Compare(padded(a), padded(b))
}

// counters prints nonzero counters with their meanings, the meaning of a histogram once.
func (p *printer) counters(c report.Counters, meaning func(name string) string) {
	last := ""
	for _, name := range slices.SortedFunc(maps.Keys(c), byNumbers) {
		n, text := c[name].Value, meaning(name)
		if n == 0 {
			continue
		}
		if text == last { // the next bucket of a histogram
			text = ""
		} else {
			last = text
		}
		p.line("  %s\t%d\t%s", name, n, text)
	}
}

// because returns why a device is not open, or "".
func because(d *report.Device) string {
	if d.State == report.DeviceOpen {
		return ""
	}
	return strings.TrimSuffix(d.Reason+": "+d.LastError, ": ")
}
