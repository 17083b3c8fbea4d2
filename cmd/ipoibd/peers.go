package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/terminal"
)

func peersCommand() *cobra.Command {
	var iface string
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "List the peers: when each was last heard, and its bytes",
		Long: "List the peers of each interface: IP addresses, address on the fabric, state of the address\n" +
			"handle, how long ago data was sent to each and anything was heard from it, and the bytes of\n" +
			"IP packets in both directions, without sent multicasts. A peer that stays silent while data\n" +
			"is sent to it is dead or unreachable. 'ipoibd status --json' has the same as JSON.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := control.GetStatus(cmd.Context(), socket(cmd))
			if err != nil {
				return err
			}
			return printPeers(cmd.OutOrStdout(), s, iface)
		},
	}
	bindControl(cmd)
	bindName(cmd, &iface, "interface", "I", "list only the peers of this interface")
	return cmd
}

func printPeers(out io.Writer, s *report.Status, iface string) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "INTERFACE\tADDRESSES\tMAC\tGID\tQP\tHANDLE\tSENT\tHEARD\tTX BYTES\tRX BYTES")
	found := iface == ""
	for i := range s.Interfaces {
		f := &s.Interfaces[i]
		if iface != "" && f.Name != iface {
			continue
		}
		found = true
		ago := func(t time.Time) string {
			if t.IsZero() {
				return "never"
			}
			return terminal.Short(max(s.Time.Sub(t), 0)).String() + " ago"
		}
		for _, p := range f.Peers {
			terminal.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\n",
				f.Name, cmp.Or(strings.Join(p.IPs, ","), "-"), p.MAC, p.GID, p.QPN, p.Handle,
				ago(p.Sent), ago(p.Heard), p.TxBytes, p.RxBytes)
		}
	}
	if !found {
		return noInterface(iface)
	}
	return w.Flush()
}
