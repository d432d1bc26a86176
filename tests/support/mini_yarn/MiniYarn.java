import java.io.FileOutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** A YARN of one node on free ports. Writes DIRECTORY/conf for its clients, then prints READY. Ends with its input. */
public class MiniYarn {
  public static void main(String[] arguments) throws Exception {
    Path directory = Paths.get(arguments[0]).toAbsolutePath();
    System.setProperty("test.build.data", directory.resolve("data").toString());
    YarnConfiguration settings = new YarnConfiguration();
    settings.set("fs.defaultFS", "file:///");
    settings.set("yarn.scheduler.minimum-allocation-mb", "128");
    settings.set("yarn.nodemanager.vmem-check-enabled", "false");
    settings.set("yarn.nodemanager.pmem-check-enabled", "false");
    settings.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99.9");
    settings.set("yarn.nodemanager.env-whitelist", "JAVA_HOME,PATH,LANG");
    settings.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.9");
    settings.set("yarn.scheduler.capacity.root.queues", "default");
    settings.set("yarn.scheduler.capacity.root.default.capacity", "100");
    MiniYARNCluster cluster = new MiniYARNCluster("mini", 1, 1, 1);
    cluster.init(settings);
    cluster.start();
    if (!cluster.waitForNodeManagersToConnect(60_000)) {
      throw new IllegalStateException("The node does not come.");
    }
    Path conf = Files.createDirectories(directory.resolve("conf"));
    write(new Configuration(cluster.getConfig()), conf.resolve("yarn-site.xml"));
    Configuration files = new Configuration(false);
    files.set("fs.defaultFS", "file:///");
    write(files, conf.resolve("core-site.xml"));
    System.out.println("READY");
    System.in.read();
    cluster.stop();
    System.exit(0);
  }

  private static void write(Configuration settings, Path file) throws Exception {
    try (FileOutputStream stream = new FileOutputStream(file.toFile())) {
      settings.writeXml(stream);
    }
  }
}
