import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Commands of the released mqadmin in one process.
 *
 * java AdminCommands NAMESRV FILE   runs each line of the file as a command and prints "== LINE", then what it printed.
 */
public class AdminCommands {
    public static void main(String[] arguments) throws Exception {
        Path home = Path.of(System.getProperty("user.home"));
        Files.createDirectories(home.resolve("conf"));
        Files.writeString(home.resolve("conf/logback_tools.xml"), "<configuration/>");
        System.setProperty("rocketmq.home.dir", home.toString());
        System.setProperty("rocketmq.namesrv.addr", arguments[0]);
        PrintStream out = System.out;
        for (String line : Files.readAllLines(Path.of(arguments[1]))) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            try (PrintStream stream = new PrintStream(printed, true)) {
                System.setOut(stream);
                System.setErr(stream);
                MQAdminStartup.main0(line.split(" "), null);
            } catch (Throwable cause) {
                out.println("thrown " + cause);
            }
            System.setOut(out);
            out.println("== " + line);
            out.println(printed);
        }
        System.exit(0);
    }
}
