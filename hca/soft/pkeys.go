package soft

import (
	"slices"

	"ipoibd/hca"
)

// SetPKeys replaces the P_Key table, and reports EventPKeyChange if that changes it. It does not
// block, and does nothing on a device that is closed. The queue pairs of a P_Key that stays are not
// affected; the queue pairs of one that is gone neither send nor receive.
func (d *Device) SetPKeys(keys []hca.PKey) {
	d.mu.Lock()
	table := retable(d.cfg.PKeys, keys)
	same := d.slow.closed || slices.Equal(table, d.cfg.PKeys)
	if !same {
		d.cfg.PKeys = table
		env := d.env()
		env.PKeys = table
		d.setEnv(env)
	}
	d.mu.Unlock()
	if !same {
		d.updateGates()
		d.emit(hca.EventPKeyChange, hca.ObjectID{Kind: hca.KindPort, Num: 1})
	}
}

// retable returns a table of keys in which each of them that is in another table keeps its index,
// because queue pairs refer to it. Free entries are zero, which matches no P_Key.
func retable(was, keys []hca.PKey) []hca.PKey {
	table := slices.Clone(was)
	for i, k := range table {
		if !slices.Contains(keys, k) || slices.Contains(table[:i], k) {
			table[i] = 0
		}
	}
	for _, k := range keys {
		if slices.Contains(table, k) {
			continue
		}
		if free := slices.Index(table, 0); free >= 0 {
			table[free] = k
		} else {
			table = append(table, k)
		}
	}
	return table
}
