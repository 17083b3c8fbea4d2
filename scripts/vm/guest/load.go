package guest

import (
	"encoding/json"
	"fmt"
	"testing"
)

// Load is a measurement of iperf3.
type Load struct {
	Mbps      float64 // received
	Resent    int     // TCP segments
	Lost, All int     // UDP datagrams
}

func (l Load) String() string {
	if l.All > 0 {
		return fmt.Sprintf("UDP %.1f Mbit/s, %d of %d datagrams lost", l.Mbps, l.Lost, l.All)
	}
	return fmt.Sprintf("TCP %.1f Mbit/s, %d segments retransmitted", l.Mbps, l.Resent)
}

// ParseLoad reads the sums of iperf3's report.
func ParseLoad(tb testing.TB, report string) Load {
	tb.Helper()
	type sum struct {
		BitsPerSecond float64 `json:"bits_per_second"`
		Retransmits   int     `json:"retransmits"`
		LostPackets   int     `json:"lost_packets"`
		Packets       int     `json:"packets"`
	}
	var r struct {
		End struct {
			Sum         sum `json:"sum"` // of UDP
			SumSent     sum `json:"sum_sent"`
			SumReceived sum `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(report), &r); err != nil {
		tb.Fatalf("parse iperf3's report %q: %v", report, err)
	}
	received := max(r.End.Sum.BitsPerSecond, r.End.SumReceived.BitsPerSecond)
	return Load{received / 1e6, r.End.SumSent.Retransmits, r.End.Sum.LostPackets, r.End.Sum.Packets}
}
