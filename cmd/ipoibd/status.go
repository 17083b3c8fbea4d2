package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/terminal"
	"ipoibd/hca"
)

func statusCommand() *cobra.Command {
	var path string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show interfaces, devices, peers, groups and counters",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := control.GetStatus(cmd.Context(), path)
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(s)
			}
			return printStatus(cmd.OutOrStdout(), s, time.Now())
		},
	}
	bindControl(cmd, &path)
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

// printStatus writes the status for people; counters that are zero are left
// out, and ages are those at the time now.
func printStatus(out io.Writer, s *control.Status, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	terminal.Fprintf(w, "ipoibd %s\tpid %d, up %s\n", s.Version, s.PID, now.Sub(s.Started).Round(time.Second))
	for i := range s.Devices {
		printDevice(w, &s.Devices[i], now)
	}
	for i := range s.Interfaces {
		printInterface(w, &s.Interfaces[i], now)
	}
	return w.Flush()
}

func printDevice(w io.Writer, d *control.Device, now time.Time) {
	terminal.Fprintf(w, "\n%s\t%s\n", deviceTitle(d), deviceState(d))
	printRecovery(w, d.Recovery, now)
	if c := d.Coordinator; c != nil && (len(c.Members) > 0 || c.Leader != "" || c.Trouble != "") {
		terminal.Fprintf(w, "  coordinator\t%s\n", coordinatorText(c, now))
	}
	if d.State != control.StateOpen {
		return
	}
	terminal.Fprintf(w, "  %s\t%s\n", d.Kind, hcaText(d))
	for i := range d.Ports {
		printPort(w, i+1, &d.Ports[i])
	}
	if d.Peers != nil {
		terminal.Fprintf(w, "  peers\t%s\n", peersText(d))
	}
	if d.Notice != "" {
		terminal.Fprintf(w, "  notice\t%s\n", d.Notice)
	}
	printCounters(w, d.Counters)
}

// hcaText names what is open.
func hcaText(d *control.Device) string {
	text := "node GUID " + d.Attr.NodeGUID.String()
	if d.HCA != config.SoftHCA {
		text = d.Attr.Name + ", " + text + ", reset " + d.Reset
	}
	if d.Attr.PCIAddr != "" {
		text += ", PCI " + d.Attr.PCIAddr
	}
	return text
}

func printPort(w io.Writer, num int, p *hca.PortAttr) {
	terminal.Fprintf(w, "  port %d\t%s, MTU %d, %s\n", num, p.State, p.ActiveMTU, p.LinkLayer)
	for i, g := range p.GIDs {
		if !g.GID.IsZero() {
			terminal.Fprintf(w, "  GID %d\t%s, %s, up to %d bytes\n", i, g.GID, g.Type, g.MaxPayload)
		}
	}
}

// peersText lists those who get what goes to a group.
func peersText(d *control.Device) string {
	var names []string
	for _, a := range d.Peers {
		names = append(names, a.String())
	}
	text := "multicast is replicated to " + strings.Join(names, ", ")
	if d.KnownPeersOnly {
		text += "; others are dropped"
	}
	return text
}

// coordinatorText names the processes that share the device, and the one that resets it.
func coordinatorText(c *control.Coordinator, now time.Time) string {
	text := "reset " + c.Phase
	switch {
	case c.Trouble != "":
		text = "does not reach other daemons: " + c.Trouble
	case !c.Silent.IsZero():
		text = fmt.Sprintf("%s, has not gone on since %s (%s); the device is not reset without it",
			c.Leader, c.Silent.Local().Format(time.TimeOnly), short(now.Sub(c.Silent)))
	case c.Leading:
		text += ", led by this daemon"
	case c.Leader != "":
		text += ", led by " + c.Leader
	}
	if len(c.Members) > 0 {
		text += "; shared with " + strings.Join(c.Members, ", ")
	}
	return text
}

// deviceTitle names a device, and the netdev under one that is no hardware.
func deviceTitle(d *control.Device) string {
	if d.Underlay == "" {
		return "device " + d.Name
	}
	return "device " + d.Name + " on " + d.Underlay
}

// deviceState tells the state of a device that was named before.
func deviceState(d *control.Device) string {
	for _, subject := range []string{"device " + d.Name + " is ", "device is "} {
		if rest, ok := strings.CutPrefix(d.State, subject); ok {
			return rest
		}
	}
	return d.State
}

func printInterface(w io.Writer, f *control.Interface, now time.Time) {
	terminal.Fprintf(w, "\ninterface %s\t%s\n", f.Name, strings.TrimSuffix(f.State+": "+f.Reason, ": "))
	printRecovery(w, f.Recovery, now)
	if f.LastError != "" && f.LastError != f.Reason {
		terminal.Fprintf(w, "  last error\t%s\n", f.LastError)
	}
	if f.MAC == "" {
		return // it has ended, or does not answer
	}
	terminal.Fprintf(w, "  link\tMAC %s, MTU %d, carrier %s, on port %d of %s\n", f.MAC, f.MTU, onOff(f.Carrier), f.Port, f.Device)
	if f.HostMAC != f.MAC {
		terminal.Fprintf(w, "  behind it\tMAC %s\n", f.HostMAC)
	}
	if q := f.QP; q != nil {
		terminal.Fprintf(w, "  QP %s\t%s, P_Key 0x%04x, Q_Key 0x%08x, GID %s\n", q.QPN, q.State, uint16(q.PKey), uint32(q.QKey), q.GID)
		terminal.Fprintf(w, "  CQs\tsend %s, receive %s\n", q.SendCQ, q.RecvCQ)
	}
	for _, g := range f.Groups {
		terminal.Fprintf(w, "  group\t%s by %s\n", g.MGID, g.Attach)
	}
	for _, p := range f.Peers {
		terminal.Fprintf(w, "  peer %s\t%s, QP %s, AH %s, %s\n", p.MAC, p.GID, p.QPN, p.Handle, strings.Join(p.IPs, " "))
	}
	printCounters(w, f.Counters)
	printCounters(w, f.Kernel)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func printCounters(w io.Writer, cs []hca.Counter) {
	for _, c := range cs {
		if c.Value != 0 {
			terminal.Fprintf(w, "  %s\t%d\n", c.Name, c.Value)
		}
	}
}
