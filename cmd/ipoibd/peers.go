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
	var (
		iface  string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "List the peers: when each was last heard, and its bytes",
		Long: "List the peers of each interface: IP addresses, address on the fabric, state of the address\n" +
			"handle, how long ago data was sent to each and anything was heard from it, and the bytes of\n" +
			"IP packets in both directions, without sent multicasts. A peer that stays silent while data\n" +
			"is sent to it is dead or unreachable.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := control.GetStatus(cmd.Context(), socket(cmd))
			if err != nil {
				return err
			}
			peers, err := peersOf(s, iface)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), peers)
			}
			return printPeers(cmd.OutOrStdout(), peers, s.Time)
		},
	}
	bindControl(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "output as JSON")
	bindName(cmd, &iface, "interface", "I", "list only the peers of this interface")
	return cmd
}

// shownPeer is a peer in the output as JSON.
type shownPeer struct {
	Interface string `json:"interface"`
	report.Peer
}

// peersOf returns the peers of an interface; "": of all.
func peersOf(s *report.Status, iface string) ([]shownPeer, error) {
	found, peers := iface == "", []shownPeer{}
	for i := range s.Interfaces {
		f := &s.Interfaces[i]
		if iface != "" && f.Name != iface {
			continue
		}
		found = true
		for _, p := range f.Peers {
			peers = append(peers, shownPeer{f.Name, p})
		}
	}
	if !found {
		return nil, noInterface(iface)
	}
	return peers, nil
}

// printPeers writes a line for each peer; now is the time of the status.
func printPeers(out io.Writer, peers []shownPeer, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "INTERFACE\tADDRESSES\tMAC\tGID\tQP\tHANDLE\tSENT\tHEARD\tTX BYTES\tRX BYTES")
	ago := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return terminal.Short(max(now.Sub(t), 0)).String() + " ago"
	}
	for i := range peers {
		p := &peers[i]
		terminal.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\n",
			p.Interface, cmp.Or(strings.Join(p.IPs, ","), "-"), p.MAC, p.GID, p.QPN, p.Handle,
			ago(p.Sent), ago(p.Heard), p.TxBytes, p.RxBytes)
	}
	return w.Flush()
}
