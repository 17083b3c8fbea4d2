package report

import "testing"

// Lost frames are dropped frames, and those of sends and receives that failed. A receive that
// was flushed held no frame, and a message of our own that came back is no loss.
func TestDrops(t *testing.T) {
	for name, lost := range map[string]uint64{
		"tx_drop_reset": 1, "rx_drop_pkey": 1, "neigh_drop_kept_frames_full": 1, "wire_tx_drop_no_route": 1,
		"tx_wc_wr_flush_err": 1, "tx_wc_loc_prot_err": 1, "rx_wc_loc_len_err": 1,
		"rx_wc_wr_flush_err": 0, "rx_own_multicast": 0, "tx_sent": 0, "rx_delivered": 0,
	} {
		if got := (Counters{name: 1}).Drops(); got != lost {
			t.Errorf("%s: %d lost frames, want %d", name, got, lost)
		}
	}
}
