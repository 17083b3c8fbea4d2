package guest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"ipoibd/scripts/vm/ibwire"
	"ipoibd/scripts/vm/kernel"
)

// addInfiniBand creates the folder of the modules for InfiniBand, with links to those in the cache and to ours, which
// it compiles.
func addInfiniBand(ctx context.Context, into string, k kernel.Kernel) error {
	if err := os.Mkdir(into, 0o755); err != nil {
		return err
	}
	wire, err := kernel.BuildModule(ctx, k, ibwire.Name, ibwire.Source, os.Stderr)
	if err != nil {
		return err
	}
	for _, file := range k.InfiniBand {
		if err := os.Symlink(file, filepath.Join(into, filepath.Base(file))); err != nil {
			return err
		}
	}
	return os.Symlink(wire, filepath.Join(into, wireModule))
}

// wireModule is the name of our module's file in that folder. It sorts behind Debian's, which begin with numbers.
const wireModule = ibwire.Name + ".ko"

// LoadInfiniBand loads the modules for InfiniBand. They make an HCA of each NIC on a wire: ibwire0 of the first, and so
// on. The guids are those of their ports, in the same order. The guest's IPoIB interfaces are ib0 and so on.
func (g *Guest) LoadInfiniBand(guids ...uint64) {
	g.tb.Helper()
	dir := filepath.Join(os.Getenv(kitEnv), string(g.series), infiniBandName)
	entries, err := os.ReadDir(dir)
	if err != nil {
		g.tb.Fatal(err)
	}
	var script strings.Builder
	for _, e := range entries {
		file := "/run/infiniband/" + e.Name()
		g.PutFile(file, filepath.Join(dir, e.Name()))
		fmt.Fprintf(&script, "insmod %s", file)
		if e.Name() == wireModule {
			var netdevs, numbers []string
			for i, guid := range guids {
				netdevs = append(netdevs, fmt.Sprintf("eth%d", i))
				numbers = append(numbers, fmt.Sprintf("%#x", guid))
			}
			fmt.Fprintf(&script, " netdevs=%s guids=%s", strings.Join(netdevs, ","), strings.Join(numbers, ","))
		}
		script.WriteString("\n")
	}
	g.Run("sh", "-ec", script.String())
}
