package cni

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"ipoibd/link/kernel"
)

// PluginName is the type of the plugin in a configuration, and the name of its file.
const PluginName = "ipoibd"

// Install copies this program into the directory of a node's CNI plugins, and creates that if necessary. It
// replaces an earlier copy atomically, so a runtime never starts half a file, and a plugin that is running is
// not disturbed.
func Install(dir string) (err error) {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer from.Close()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("install the plugin: %w", err)
	}
	to, err := kernel.Replace(filepath.Join(dir, PluginName), func(f *os.File) error {
		_, err := io.Copy(f, from)
		return errors.Join(err, f.Chmod(0o755), f.Sync())
	})
	if err != nil {
		return fmt.Errorf("install the plugin: %w", err)
	}
	return to.Close()
}
